"""Answers that another worker began and that pause: read at once, gone on with when told to."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.wire.messages import Delta, Done, Failed, Finish, PromptRead, Started, TaskKey
from tests.worker.engine.test_resume import Cut, tokens_of
from tests.worker.engines import Rig
from worker.engine.resume import resume_task
from worker.engine.slot import Slot
from worker.engine.task import Abort, AbortAll, EngineJob, ProceedWith, Report, Submit


class Paused:
    """A rig that goes on with an answer of another one, and waits before the next token."""

    def __init__(self, prompt: str = "abc", n: int = 3, **options: Any) -> None:
        self.whole = Cut(Rig(**options), prompt)
        self.rig = Rig(**options)
        self.key = TaskKey(77, 1)
        self.partial = replace(self.whole.partial(n), pause_after_prefill=True)
        self.task = resume_task(
            replace(self.whole.task, key=self.key), self.partial, self.rig.backend.vocabulary
        )
        self.rig.engine.submit(Submit(self.task))
        self.read()

    def read(self) -> None:
        """Turn until there is nothing to compute."""
        self.rig.turn()
        while self.rig.engine.n_running:
            self.rig.turn()

    @property
    def rest(self) -> list[int]:
        """Tokens after those of the partial answer."""
        return tokens_of([message for message in self.rig.of(77) if isinstance(message, Delta)])


def test_it_is_read_and_then_waits_until_it_is_told_to_go_on() -> None:
    paused = Paused()
    said = paused.rig.of(77)
    assert [type(message) for message in said] == [Started, PromptRead]
    started, told = said
    assert isinstance(started, Started)
    assert isinstance(told, PromptRead)
    assert started.n_reread + started.n_cached == told.n_read + told.n_cached
    paused.rig.engine.submit(ProceedWith(paused.key))
    paused.rig.finish()
    assert list(paused.partial.tokens) + paused.rest == paused.whole.tokens
    assert paused.rig.done(77).n_predicted == paused.whole.done.n_predicted


def test_one_that_is_told_while_it_reads_does_not_stop() -> None:
    paused = Paused(prompt="x" * 100, n_batch=16, n=2)
    rig = Rig(n_batch=16)
    rig.engine.submit(Submit(paused.task))
    rig.turn()
    rig.engine.submit(ProceedWith(paused.key))
    rig.finish()
    assert rig.done(77).n_predicted == paused.whole.done.n_predicted


def test_what_pauses_is_no_work_that_a_watchdog_waits_for() -> None:
    paused = Paused()
    engine = paused.rig.engine
    assert (engine.n_busy, engine.n_running, engine.heartbeat().busy) == (1, 0, 0)
    step = engine.heartbeat().step
    engine.submit(Report(TaskKey(9)))
    paused.rig.turn()
    assert engine.slots[0].tokens == paused.task.reading
    assert engine.heartbeat().step > step


def test_others_run_beside_it() -> None:
    paused = Paused()
    other = paused.rig.submit("other")
    paused.read()
    assert paused.rig.done(other).finish is Finish.LIMIT
    assert not paused.rest


def test_what_waits_for_its_slot_does_not_keep_the_engine_busy() -> None:
    paused = Paused(n_slots=1)
    waiting = paused.rig.submit("waits")
    paused.rig.engine.submit(EngineJob(TaskKey(8), lambda: Done(finish=Finish.NONE), slot=0))
    paused.rig.turn()
    assert paused.rig.engine.n_waiting == 1
    assert not paused.rig.engine._has_work()
    paused.rig.engine.submit(ProceedWith(paused.key))
    paused.rig.finish()
    assert paused.rig.done(waiting).n_predicted == 8
    assert paused.rig.terminals(8) == 1


def test_a_task_gets_the_slot_of_another_one_beside_what_pauses() -> None:
    paused = Paused(n_slots=2)
    tasks = [paused.rig.submit("other") for _ in range(2)]
    paused.read()
    assert paused.rig.done(tasks[0]).finish is Finish.LIMIT
    while paused.rig.engine._has_work():
        paused.rig.turn()
    assert paused.rig.done(tasks[1]).finish is Finish.LIMIT


def test_jobs_do_not_wait_for_what_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused(n_slots=1)
    engine = paused.rig.engine
    for task_id in (8, 9):
        engine.submit(EngineJob(TaskKey(task_id), lambda: Done(finish=Finish.NONE), is_heavy=True))
    paused.rig.turn()

    def waits(**_options: float) -> None:
        raise AssertionError("the engine waits, although it has something to do")

    monkeypatch.setattr(engine, "_commands", SimpleNamespace(empty=lambda: True, get=waits))
    paused.rig.turn()
    assert [paused.rig.terminals(task_id) for task_id in (8, 9)] == [1, 1]


def test_it_is_cancelled_like_any_other() -> None:
    paused = Paused()
    paused.rig.engine.submit(ProceedWith(TaskKey(77, 0)))  # of another attempt
    paused.rig.engine.submit(Abort(paused.key))
    paused.rig.turn()
    assert (paused.rest, paused.rig.done(77).finish) == ([], Finish.CANCELLED)
    aborted = Paused()
    aborted.rig.engine.submit(AbortAll(0))
    aborted.rig.turn()
    assert aborted.rig.engine.n_busy == 0


def test_one_that_runs_takes_the_cells_of_one_that_pauses() -> None:
    paused = Paused(prompt="a" * 100, n_ctx=512, n_cells=512, n_branches=0)
    runs = paused.rig.submit("[[eos 450]]", n_predict=-1)
    paused.read()
    assert paused.rig.done(runs).finish is Finish.EOS
    assert paused.rig.engine.counters.n_preempted == 1
    paused.rig.engine.submit(ProceedWith(paused.key))
    paused.rig.finish()
    assert not isinstance(paused.rig.of(77)[-1], Failed)
    assert list(paused.partial.tokens) + paused.rest == paused.whole.tokens


def test_a_heartbeat_may_see_a_task_end(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused()
    (slot,) = [slot for slot in paused.rig.engine.slots if slot.run is not None]
    ending = iter([slot.run, slot.run])  # what the link's thread finds, look by look
    monkeypatch.setattr(Slot, "run", property(lambda _slot: next(ending, None)))
    assert slot.is_paused
