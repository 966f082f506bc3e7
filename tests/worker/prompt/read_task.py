"""Reads a generation as a worker does."""

from protocol.wire.messages import Envelope, Generate, TaskKey
from worker.engine.task import EngineTask
from worker.prompt.prompt import Prepared, PromptReader


def read_task(reader: PromptReader, message: Generate) -> EngineTask:
    """Return the task that the engine gets; raises `TaskError` if it cannot run."""
    prepared = reader.prepare(Envelope(TaskKey(1), message))
    assert isinstance(prepared, Prepared)
    return prepared.task
