"""Every message of the wire, both directions.

A frame is one ZeroMQ message and holds the messages of one engine step (or of one gateway turn) in
order. Invariants, property-tested on both sides:

- each task ends with exactly one terminal message, and nothing of that attempt follows it;
- `Started` comes before the first `Delta`; the text of a task is the concatenation of its deltas;
- `Heartbeat.step` grows while `busy > 0`, or else the worker is stuck, not alive;
- what belongs to a task travels in an `Envelope`, what belongs to the connection does not; a
  receiver drops and counts envelopes of an attempt that it has given up.

An envelope whose payload cannot be read fails its own task only: the payload becomes `Malformed`.
Adding a field with a default is compatible; anything else raises `WIRE_VERSION`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from protocol import WIRE_VERSION
from protocol.errors import ErrorCode
from protocol.wire.begun import Begun
from protocol.wire.facts import ModelCard, SlotReport, Stats, Timings, TokenProb
from protocol.wire.sampling import SamplingParams


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


class TaskKey(NamedTuple):
    """Names one attempt at one task."""

    id: int
    attempt: int = 0
    connection: int = 0
    """The worker's number of the connection that the task came over; it does not travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Base of what concerns the connection and no task; travels without an envelope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage:
    """Base of the payloads: what is said to or of one task. It does not know which one."""


class Envelope(NamedTuple):
    """A payload and the task that it belongs to."""

    task: TaskKey
    payload: TaskMessage
    slot: int = -1
    """The slot that a task shall run in, by the worker's own number; -1 is any."""


FrameItem = Message | Envelope
"""One entry of a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed(TaskMessage):
    """Never travels: stands for a payload that its receiver could not read."""

    reason: str


# ---- gateway -> worker ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Message):
    """Answers `Hello`: who the gateway is and how often it wants a heartbeat."""

    gateway: str
    """Id of the gateway's process, a new one at each start."""
    heartbeat_s: float = 1.0
    wire_version: int = WIRE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Message):
    """Answers `Hello` too: this worker is not wanted, and coming back would not change that."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Message):
    """Answers `Ready`: from now on tasks may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation to be rendered by the model's chat template in the worker."""

    messages: tuple[dict[str, Any], ...] = ()
    kwargs: dict[str, Any] | None = None
    """Extra variables of the template (`chat_template_kwargs`)."""
    tools: tuple[dict[str, Any], ...] = ()
    """OpenAI's tool objects, `{"type": "function", "function": {…}}`."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or `function:NAME` for a named one."""
    parallel_tool_calls: bool | None = None
    """Whether one answer may hold several calls; unset is the template's habit."""
    schema: str | None = None
    """JSON text of the schema that the answer must match; `{}` is any object."""
    reasoning_format: str = "auto"
    """`none` leaves thoughts in the text, `deepseek` and `auto` take them out."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The last message is the assistant's and is to be gone on with."""
    continue_thought: bool | None = None
    """It is its thoughts that are gone on with; unset is as the message has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infill:
    """A gap in a text: what stands before and after it, and other files for context."""

    prefix: str | tuple[int | str, ...] = ""
    suffix: str | tuple[int | str, ...] = ""
    extra: tuple[tuple[str, str], ...] = ()
    """File name and text of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate(TaskMessage):
    """Continue a prompt. Exactly one of `prompt` and `chat` is set, unless there is a gap."""

    prompt: str | tuple[int | str, ...] | None = None
    """Text, or tokens and texts mixed; only a leading text gets BOS."""
    chat: Chat | None = None
    params: SamplingParams
    schema: str | None = None
    """JSON text of a schema for the text of a `prompt`; a chat has its own."""
    infill: Infill | None = None
    """What stands around the gap; `prompt` is then the text before it, after the prefix."""
    media: tuple[bytes, ...] = ()
    """Images or sounds in the order of their markers in the prompt."""
    salt: str = ""
    """Namespace of the cache: a prompt is reused only by tasks of the same one."""
    chain: bytes = b""
    """Hashes of the prompt's blocks, `BLOCK_BYTES` each, each of all before it too: the words
    in which the worker says what it has cached (`Cached`). Empty: nothing is to be said."""
    echo: bool = False
    """The first delta tells the prompt's own tokens; with `n_probs` also how likely they were."""
    tells_prompt: bool = False
    """`Done` tells the text that a chat became; that of a `prompt` is told in any case."""
    begun: Begun | None = None
    """The answer goes on from here instead of beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize(TaskMessage):
    """Text (or texts and tokens mixed) to tokens; answered without a slot."""

    content: str | tuple[int | str, ...]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenize(TaskMessage):
    """Tokens to text; answered without a slot."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(TaskMessage):
    """Ask what each slot is doing; answered between two engine steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(TaskMessage):
    """End the task within one step; it still ends with its one terminal message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Message):
    """Finish what runs, then say `Bye` and exit with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Message):
    """Carries nothing: sending it makes ZeroMQ tell whether the peer is still there."""


# ---- worker -> gateway ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """First message of a connection. One worker start, one `epoch`."""

    worker: str
    epoch: int
    pid: int
    model: str
    """The alias under which the model will be served, known before it is loaded."""
    connection: int = 0
    """The worker's number of this connection: it may have several to one address."""
    wire_version: int = WIRE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingProgress(Message):
    """The model is being read; `fraction` is 0 to 1."""

    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Message):
    """The model is loaded and warm: the slots are open, unless the worker is held."""

    card: ModelCard
    granted: int = 0
    """As in `Heartbeat`."""
    is_held: bool = False
    """It takes only tasks that name it, until it says `Admitted`: it is being tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted(Message):
    """A held worker takes all tasks from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Message):
    """Sent each interval and with every terminal message."""

    step: int
    busy: int
    waiting: int = 0
    stats: Stats = Stats()
    is_sleeping: bool = False
    """The model is not loaded: the next task waits until it is."""
    stall_s: float = 10.0
    """While it is busy, `step` grows at least this often, or the worker ends itself."""
    granted: int = 0
    """Credits given to this gateway less those taken from it, since the connection began.

    It begins with all of the card; what it returned by itself is not counted here.
    """
    others: int = 0
    """Tasks of other gateways that hold a credit."""
    is_shared: bool = False
    """Other gateways use the worker too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(TaskMessage):
    """The task has a slot. `n_prompt` counts all tokens of the prompt, `n_cached` the reused."""

    slot: int
    n_prompt: int
    n_cached: int = 0
    """With `Generate.begun` also those of the answer."""
    seed: int | None = None
    """The seed that is used; a drawn one if the request has none."""
    n_reread: int = 0
    """With `Generate.begun`: tokens of prompt and answer that are not cached and are read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(TaskMessage):
    """How far the prompt is read; only with `return_progress`."""

    total: int
    cached: int
    processed: int
    time_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of a tool call: id and name come once, with its first piece."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta(TaskMessage):
    """What one step added. `text` may be empty while a character or a stop string is incomplete."""

    text: str = ""
    reasoning: str = ""
    """What a chat's parser took for thoughts, out of the same text."""
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
class Terminal(TaskMessage):
    """Base of the messages that end a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Terminal):
    """The generation is over; the last text has gone out in a `Delta` before."""

    finish: Finish
    stopping_word: str = ""
    truncated: bool = False
    has_new_line: bool = False
    prompt: str = ""
    """The prompt as processed, special tokens written out."""
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
    """The stop strings that held: the request's, and those that the worker has for it."""
    backend_sampling: bool = False
    """The tokens after the first were chosen on the device of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Terminal):
    """The task has no result (or no more of it)."""

    code: ErrorCode
    message: str
    param: str | None = None
    detail: dict[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized(Terminal):
    """Answers `Tokenize`; `pieces` only when asked for."""

    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenized(Terminal):
    """Answers `Detokenize`."""

    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected(Terminal):
    """Answers `Inspect`."""

    slots: tuple[SlotReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining(Message):
    """The worker takes nothing new; it leaves when its tasks have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye(Message):
    """The worker leaves; its running tasks have ended before."""

    reason: str
    is_failure: bool = False
    """It cannot go on: a death in good order. Tasks that it never began are for others."""
