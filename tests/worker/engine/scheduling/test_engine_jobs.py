"""Long jobs beside running tasks: whose turn it is."""

from types import SimpleNamespace

import pytest

from protocol.wire.messages import Done, Finish, TaskKey
from tests.worker.engines import Rig
from worker.engine import engine_jobs
from worker.engine.task import EngineJob


class Clock:
    """Time passes only where work is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(engine_jobs, "time", SimpleNamespace(monotonic=lambda: self.now))

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def jobs_seen_by_steps(monkeypatch: pytest.MonkeyPatch, job_s: float) -> list[int]:
    """Return how many of three jobs were done before each step of 0.1 s beside a stream."""
    clock, rig = Clock(monkeypatch), Rig()
    seen, done = list[int](), list[int]()
    rig.submit("hello", n_predict=60)
    rig.turn()
    run = rig.engine._step.run

    def step() -> None:
        seen.append(len(done))
        clock.pass_by(0.1)
        run()

    def work() -> Done:
        done.append(1)
        clock.pass_by(job_s)
        return Done(finish=Finish.NONE)

    monkeypatch.setattr(rig.engine._step, "run", step)
    for task_id in (7, 8, 9):
        rig.engine.submit(EngineJob(TaskKey(task_id), work, is_heavy=True))
    for _ in range(12):
        rig.turn()
    return seen


def test_a_job_that_takes_no_longer_than_a_step_leaves_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert jobs_seen_by_steps(monkeypatch, job_s=0.01)[:4] == [1, 2, 3, 3]


def test_after_a_long_job_steps_get_as_much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings of long inputs left a stream one token in two seconds."""
    assert jobs_seen_by_steps(monkeypatch, job_s=0.45)[:11] == [1] * 5 + [2] * 5 + [3]


def test_long_jobs_follow_one_another_where_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rig = Clock(monkeypatch), Rig()

    def work() -> Done:
        clock.pass_by(5.0)
        return Done(finish=Finish.NONE)

    for task_id in (7, 8):
        rig.engine.submit(EngineJob(TaskKey(task_id), work, is_heavy=True))
    rig.turn()
    rig.turn()
    assert [rig.terminals(task_id) for task_id in (7, 8)] == [1, 1]


def test_no_job_for_a_slot_is_compared_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 4,000 that waited was looked for among those that could be done."""
    compared: list[object] = []

    def noted(one: EngineJob, other: object) -> bool:
        compared.append(other)
        return one is other

    monkeypatch.setattr(EngineJob, "__eq__", noted)
    rig = Rig()
    rig.submit("hello", n_predict=5)
    rig.turn()
    for task_id in range(100, 140):
        job = EngineJob(TaskKey(task_id), lambda: Done(finish=Finish.NONE), slot=task_id % 2)
        rig.engine.submit(job)
    rig.finish()
    rig.turn()
    assert [rig.terminals(task_id) for task_id in range(100, 140)] == [1] * 40
    assert compared == []
