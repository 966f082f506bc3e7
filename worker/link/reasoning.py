"""Ends the thoughts of a running task, between two steps."""

from protocol.wire.messages import TaskKey
from protocol.wire.side_tasks import EndThoughts, ThoughtsEnded
from worker.engine.engine import Engine
from worker.engine.task import EngineJob


def end_thoughts(engine: Engine, key: TaskKey, message: EndThoughts) -> EngineJob:
    """Return the command that does it; the engine's thread owns the samplers."""

    def work() -> ThoughtsEnded:
        runs = [slot.run for slot in engine.slots if slot.run is not None]
        own = [run for run in runs if run.task.key.connection == key.connection]
        found = [run for run in own if run.task.key.id == message.target]
        for run in found:
            run.sampler.end_thoughts()
        return ThoughtsEnded(is_running=bool(found))

    return EngineJob(key, work)
