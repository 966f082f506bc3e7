"""Reads the prompt of several choices once: rendering and tokenizing take the same for each."""

from collections.abc import Callable
from dataclasses import replace

from protocol.errors import TaskError
from protocol.wire.messages import Envelope, Generate, TaskKey
from worker.engine.task import EngineTask
from worker.output.chat_parser.parser import ExpectedParts

ReadPrompt = tuple[EngineTask, ExpectedParts | None]
"""A task without its sampler, and what its answer may have, if that is parsed."""


class Choices:
    """Holds the prompt that was read last; made for one job, used by its thread."""

    def __init__(self) -> None:
        self._message: Generate | None = None
        self._found: ReadPrompt | TaskError | None = None

    def read(
        self,
        envelope: Envelope,
        message: Generate,
        read: Callable[[TaskKey, Generate, int], ReadPrompt],
    ) -> ReadPrompt:
        """Return what `read` gives for a task; raises its `TaskError`."""
        key, found = envelope.task, self._found
        if found is None or self._message is None or not _is_alike(message, self._message):
            found = _outcome(read, key, message, envelope.slot)
            self._message, self._found = message, found
        if isinstance(found, TaskError):
            raise found
        task, expected = found
        params = replace(task.params, seed=message.params.seed)
        # A list of its own: the engine removes from it what a full context loses.
        own = replace(task, key=key, slot=envelope.slot, params=params, prompt=list(task.prompt))
        return own, expected


def _outcome(
    read: Callable[[TaskKey, Generate, int], ReadPrompt], key: TaskKey, message: Generate, slot: int
) -> ReadPrompt | TaskError:
    try:
        return read(key, message, slot)
    except TaskError as error:
        return error.with_traceback(None)  # its frames hold the task with all media


def _is_alike(message: Generate, other: Generate) -> bool:
    """Return whether two tasks differ in nothing but the seed and what was said already."""
    params = replace(message.params, seed=other.params.seed)
    return replace(message, params=params, partial_answer=other.partial_answer) == other
