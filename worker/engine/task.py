"""One generation as the engine gets it: tokens and parameters, nothing of HTTP or the wire."""

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.errors import TaskError
from protocol.wire.messages import Failed, Terminal
from protocol.wire.sampling import SamplingParams
from worker.engine.backend import Sampler
from worker.engine.media import Media


@dataclass(frozen=True, slots=True)
class EngineTask:
    """A tokenized prompt with everything that decides what is made of it."""

    task_id: int
    attempt: int
    prompt: list[int]
    params: SamplingParams
    slot: int = -1
    """The slot that it must run in, or -1."""
    text: str = ""
    """The prompt as text, to be echoed in `Done`."""
    truncated: bool = False
    """The prompt was too long and was cut in the middle."""
    media: Media = field(default_factory=dict)
    """Images and sounds in the prompt."""
    tells_tokens: bool = False
    """Each token is told in a message of its own, even if the answer is not streamed."""
    shown: frozenset[int] = frozenset()
    """Control tokens whose text is part of the answer."""
    triggers: tuple[str, ...] = ()
    """The grammar begins where one of these texts comes; without any it holds from the start."""
    salt: str = ""
    """Namespace of the cache: what it leaves there is for tasks of the same one only."""
    echo_from: int = -1
    """The first prompt token that is told with the first delta; -1 is none."""
    sampler: Sampler | None = field(default=None, compare=False)
    """Made ahead by the thread that read the prompt; without it the engine's thread makes one."""

    @property
    def is_held(self) -> bool:
        """The answer leaves in one piece: nothing but its end is waited for."""
        return not (self.params.stream or self.params.timings_per_token or self.tells_tokens)

    @property
    def key(self) -> tuple[int, int]:
        """Identify the attempt."""
        return self.task_id, self.attempt


@dataclass(frozen=True, slots=True)
class Submit:
    """Command: run this task, and those that came with it: choices of one prompt start together."""

    task: EngineTask
    more: tuple[EngineTask, ...] = ()


@dataclass(frozen=True, slots=True)
class Abort:
    """Command: end this task within one step."""

    task_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Command: end every task silently; the gateway that wanted them is gone."""


@dataclass(frozen=True, slots=True)
class Report:
    """Command: describe the slots."""

    task_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class EngineJob:
    """Command: do this between two steps and send what it returns.

    For whatever needs the backend but no slot: embeddings, saving a slot, adapters. It should take
    no longer than a step, or everybody waits: long work is cut into several calls.
    """

    task_id: int
    attempt: int
    work: Callable[[], Terminal | None]
    """Returns the terminal message, or None if another call goes on with it."""
    slot: int = -1
    """The slot that must be idle for it, or -1; it comes before the tasks that wait."""
    is_heavy: bool = False
    """It takes as long as a step: such calls take turns with the steps, one by one."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Command: leave the loop; what still runs is abandoned."""

    reason: str = field(default="stopped")


Command = Submit | Abort | AbortAll | Report | EngineJob | Stop


def failed(task: EngineTask, error: TaskError) -> Failed:
    """Make the terminal message of a generation that has no result."""
    return failure(task.task_id, task.attempt, error)


def failure(task_id: int, attempt: int, error: TaskError) -> Failed:
    """Make the terminal message of an attempt that has no result."""
    return Failed(
        task_id=task_id,
        attempt=attempt,
        code=error.code,
        message=error.message,
        param=error.param,
        detail=error.detail or None,
    )
