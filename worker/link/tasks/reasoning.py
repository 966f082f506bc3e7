"""Ends the reasoning of a running task, between two steps."""

from protocol.wire.messages import TaskKey
from protocol.wire.side_tasks import EndReasoning, ReasoningEnded
from worker.engine.engine import Engine
from worker.engine.task import EngineJob


def end_reasoning(engine: Engine, key: TaskKey, message: EndReasoning) -> EngineJob:
    """Return the command that does it; the engine's thread owns the samplers."""

    def work() -> ReasoningEnded:
        runs = [slot.run for slot in engine.slots if slot.run is not None]
        own = [run for run in runs if run.task.key.connection == key.connection]
        found = [run for run in own if run.task.key.id == message.target]
        for run in found:
            run.sampler.end_reasoning()
        return ReasoningEnded(is_running=bool(found))

    return EngineJob(key, work)
