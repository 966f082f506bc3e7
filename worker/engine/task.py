"""The engine's commands, and a generation as tokens and parameters."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.errors import ErrorCode, TaskError
from protocol.wire.facts import Usage
from protocol.wire.messages import Envelope, Failed, FrameItem, TaskKey, Terminal
from protocol.wire.partial_answer import PartialAnswer
from protocol.wire.sampling import SamplingParams
from worker.engine.backend import Sampler
from worker.engine.media import Media
from worker.output.generation import TextGeneration

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumedAnswer:
    """An answer that another worker began (`worker.engine.resume`)."""

    partial: PartialAnswer
    """What the client has of it."""
    generation: TextGeneration
    """As it was after the last token."""
    text: str
    """The text of the tokens, as far as it is certain."""
    reading: list[int]
    """What must be in the cache before the last token: the prompt and the tokens before."""


@dataclass(frozen=True, slots=True)
class EngineTask:
    """A tokenized prompt and its parameters."""

    key: TaskKey
    prompt: list[int]
    params: SamplingParams
    slot: int = -1
    """Slot that it must run in, or -1 for any."""
    text: str = ""
    """Prompt as text, for `Done`."""
    truncated: bool = False
    """The prompt was too long and was cut in the middle."""
    media: Media = field(default_factory=dict)
    """Images and sounds in the prompt."""
    reports_tokens: bool = False
    """Each token is sent in its own message, even if the answer is not streamed."""
    shown: frozenset[int] = frozenset()
    """Control tokens whose text is shown, because a parser needs it."""
    triggers: tuple[str, ...] = ()
    """Texts that start the grammar; without any it applies from the first token."""
    salt: str = ""
    """Tenant's part of the cache namespace: only tasks with the same salt share prompts."""
    tenant: str = ""
    """Whose task it is: tenants take turns where adapters differ."""
    chain: bytes = b""
    """Hashes of the prompt's blocks, by which the gateways know it (`Generate.chain`)."""
    echo_from: int = -1
    """First prompt token that is sent with the first delta; -1 is none."""
    sampler: Sampler | None = field(default=None, compare=False)
    """Sampler made by the thread that read the prompt; without it the engine makes one."""
    resumed: ResumedAnswer | None = None
    """The answer goes on from here."""
    grammar_field: str = "grammar"
    """Field of the request from which its grammar was made."""

    @property
    def reading(self) -> list[int]:
        """Tokens that must be in the cache before the next token is computed."""
        return self.prompt if self.resumed is None else self.resumed.reading

    @property
    def n_resumed(self) -> int:
        """Tokens of the answer that another worker has generated."""
        return 0 if self.resumed is None else len(self.resumed.partial.tokens)

    @property
    def shows_end(self) -> bool:
        """Whether the token that ends the answer may be shown: not behind JSON, which it spoils."""
        return not self.params.grammar

    @property
    def is_whole(self) -> bool:
        """Whether the answer leaves in one piece, after its first token."""
        return not (self.params.stream or self.params.timings_per_token or self.reports_tokens)


@dataclass(frozen=True, slots=True)
class Submit:
    """Command: run a task, and the other choices of its prompt (`n > 1`), which start together."""

    task: EngineTask
    more: tuple[EngineTask, ...] = ()


@dataclass(frozen=True, slots=True)
class Abort:
    """Command: cancel an attempt; it ends within one step."""

    key: TaskKey


@dataclass(frozen=True, slots=True)
class ProceedWith:
    """Command: choose the next token of a paused answer (`PartialAnswer.pause_after_prefill`)."""

    key: TaskKey


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Command: end every task of a connection without a message: its gateway is gone."""

    connection: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Command: send all block hashes that the cache holds, because a gateway is new."""


@dataclass(frozen=True, slots=True)
class Report:
    """Command: describe the slots."""

    key: TaskKey


@dataclass(frozen=True, slots=True)
class EngineJob:
    """Command: do some work between two steps and send what it returns.

    For work on the backend that is no generation: embeddings, saving a slot, adapters. All tasks
    wait for it, so long work is cut into several jobs.
    """

    key: TaskKey
    work: Callable[[], Terminal | None]
    """Returns the terminal message, or None if another job continues the work."""
    slot: int = -1
    """Slot that must be idle for it, or -1. It comes before the tasks that wait for the slot."""
    is_heavy: bool = False
    """It takes as long as a step: one such job is done between two steps."""
    usage: Callable[[], Usage] = Usage
    """Returns what the task has cost so far."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Command: leave the loop; tasks that still run fail."""


Command = Submit | Abort | AbortAll | ProceedWith | Announce | Report | EngineJob | Stop
Emit = Callable[[Sequence[FrameItem]], None]
"""Takes the messages of a step; they leave at once."""


def naming(error: TaskError, field: str) -> TaskError:
    """Return an error; one about a grammar that was made from another field names that field."""
    if error.param != "grammar" or field == "grammar":
        return error
    return TaskError(error.code, f"Field '{field}': {error.message}", param=field)


def failed(key: TaskKey, error: TaskError, usage: Usage | None = None) -> Envelope:
    """Return the terminal message of an attempt that failed."""
    message = Failed(
        code=error.code,
        message=error.message,
        param=error.param,
        detail=error.detail or None,
        usage=usage or Usage(),
    )
    return Envelope(key, message)


def internal_error(key: TaskKey, error: Exception) -> TaskError:
    """Log an exception that no task should cause; return the error that its task ends with."""
    logger.error(
        "unexpected exception",
        extra={"task": key.id, "attempt": key.attempt, "action": "the task fails"},
        exc_info=error,
    )
    return TaskError(ErrorCode.INTERNAL, f"internal error: {type(error).__name__}")
