"""Messages with which a worker answers, up to the one that ends the task."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import ErrorCode
from protocol.wire.facts import SlotReport, Timings, TokenProb
from protocol.wire.messages.envelope import TaskMessage, Terminal


class Finish(StrEnum):
    """Why a generation ended; OpenAI's `finish_reason` is derived from it."""

    EOS = "eos"
    """The model chose an end-of-generation token."""
    WORD = "word"
    """A stop string was found."""
    LIMIT = "limit"
    """`n_predict`, the time limit, the indentation limit, or the context is full."""
    CANCELLED = "cancelled"
    """The gateway asked for it; no client sees this."""
    NONE = "none"
    """Nothing was generated (an empty prompt on a model without BOS)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(TaskMessage):
    """The task has a slot. `n_prompt` counts all tokens of the prompt, `n_cached` the reused."""

    slot: int
    n_prompt: int
    n_cached: int = 0
    """With `Generate.partial_answer` also those of the answer."""
    seed: int | None = None
    """The seed that is used; a drawn one if the request has none."""
    n_reread: int = 0
    """With `Generate.partial_answer`: uncached tokens of prompt and answer, read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(TaskMessage):
    """How far the prompt is read; only with `return_progress`."""

    total: int
    cached: int
    processed: int
    time_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRead(TaskMessage):
    """What a prompt has cost so far; sent after each step that has read a part of it.

    By it the gateway charges the prompt if the worker dies. Clients do not see it.
    """

    n_read: int
    """As in `Usage`."""
    n_cached: int = 0
    is_paused: bool = False
    """All is read (`PartialAnswer.pause_after_prefill`): the task waits for `Proceed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of a tool call: id and name come once, with its first piece."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True, kw_only=True)
class Delta(TaskMessage):
    """What one step added. `text` may be empty while a character or a stop string is incomplete.

    Not frozen, unlike all others: one is made for every token, and that takes twice as long frozen.
    """

    text: str = ""
    reasoning: str = ""
    """Reasoning that a chat's parser took out of the same text."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    tokens: tuple[int, ...] = ()
    """Every token of the answer is in one delta; the last delta before the end may have none."""
    sampler_state: tuple[float, ...] = ()
    """The sampler's state after the last of `tokens`, as far as these do not determine it."""
    probs: tuple[TokenProb, ...] = ()
    prompt: tuple[TokenProb, ...] = ()
    """The tokens of the prompt, once, if `Generate.echo` asked; `p` is NaN where unknown."""
    n_predicted: int = 0
    """Tokens generated up to and including this delta."""
    timings: Timings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Terminal):
    """The generation is over; the last text has gone out in a `Delta` before."""

    finish: Finish
    stopping_word: str = ""
    truncated: bool = False
    has_new_line: bool = False
    prompt: str = ""
    """The prompt as processed, special tokens written out."""
    grammar: str = ""
    """The grammar of the answer, where there is a `prompt`."""
    generation_prompt: str = ""
    """The end of a chat's prompt that asks for an answer, where there is a `prompt`."""
    raw: str = ""
    """A chat's answer before it was parsed, where `returns_prompt` asks for it."""
    n_prompt: int = 0
    n_cached: int = 0
    n_predicted: int = 0
    n_past: int = 0
    """Tokens left in the slot's cache."""
    slot: int = -1
    timings: Timings = Timings()
    biases: tuple[tuple[int, float], ...] = ()
    """The `logit_bias` that was applied: texts as their tokens, `ignore_eos` as its tokens."""
    stops: tuple[str, ...] = ()
    """The stop strings in effect: the request's, and those that the worker added."""
    backend_sampling: bool = False
    """The tokens after the first were chosen on the device of the model."""
    n_stop_tokens: int = 0
    """Tokens of `stopping_word`, if the task asked for probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Terminal):
    """The task has no result (or no more of it)."""

    code: ErrorCode
    message: str
    param: str | None = None
    detail: dict[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized(Terminal):
    """Answers `Tokenize`. Numbers are int32, one after the other; as a list of values, a million
    would hold the gateway's loop for 0.1 s."""

    tokens: bytes
    pieces: bytes = b""
    """The texts of the tokens, one after the other, when asked for."""
    sizes: bytes = b""
    """Of each piece, the number of its bytes."""

    @classmethod
    def of(cls, tokens: Sequence[int], pieces: Sequence[bytes] = ()) -> "Tokenized":
        """Pack tokens, and their pieces."""
        sizes = array("i", map(len, pieces)).tobytes()
        return cls(tokens=array("i", tokens).tobytes(), pieces=b"".join(pieces), sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenized(Terminal):
    """Answers `Detokenize`."""

    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected(Terminal):
    """Answers `Inspect`."""

    slots: tuple[SlotReport, ...]
