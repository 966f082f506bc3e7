"""Whatever runs on the engine's thread is watched: the watchdog sees when it began."""

from typing import Any

from protocol.wire.messages import Detokenized, TaskKey
from tests.worker.engines import Rig
from worker.engine.task import EngineJob, Report


def test_nothing_is_watched_between_two_turns() -> None:
    rig = Rig()
    rig.submit("hello")
    rig.turn()
    assert rig.engine.progress.started_s == 0.0


def test_the_making_of_a_sampler_is_watched() -> None:
    rig = Rig()
    seen: list[float] = []
    whole = rig.backend.open_sampler

    def spying(*args: Any, **named: Any) -> Any:
        seen.append(rig.engine.progress.started_s)
        assert rig.engine.heartbeat().busy == 1
        return whole(*args, **named)

    rig.backend.open_sampler = spying  # type: ignore[method-assign]
    rig.submit("hello")
    rig.turn()
    assert len(seen) == 1 and seen[0] > 0


def test_light_and_heavy_calls_are_watched() -> None:
    rig = Rig()
    seen: list[float] = []

    def work() -> Detokenized:
        seen.append(rig.engine.progress.started_s)
        return Detokenized(content="")

    rig.engine.submit(EngineJob(TaskKey(1), work))
    rig.engine.submit(EngineJob(TaskKey(2), work, is_heavy=True))
    rig.engine.submit(EngineJob(TaskKey(3), work, slot=1))
    rig.turn()
    assert len(seen) == 3 and all(since > 0 for since in seen)
    assert rig.engine.progress.started_s == 0.0


def test_steps_are_watched_and_counted() -> None:
    rig = Rig()
    seen: list[float] = []
    whole = rig.backend.decode

    def spying(rows: Any) -> None:
        seen.append(rig.engine.progress.started_s)
        whole(rows)

    rig.backend.decode = spying  # type: ignore[method-assign]
    rig.submit("hello")
    rig.finish()
    assert all(since > 0 for since in seen)
    assert seen == sorted(seen) and len(set(seen)) > 1


def test_all_work_shows_in_the_heartbeat_as_progress() -> None:
    rig = Rig()
    steps = [rig.engine.heartbeat().step]
    rig.engine.submit(Report(TaskKey(1)))
    rig.turn()
    steps.append(rig.engine.heartbeat().step)
    rig.submit("hello", n_predict=1)
    rig.turn()
    steps.append(rig.engine.heartbeat().step)
    assert steps[0] < steps[1] < steps[2]
