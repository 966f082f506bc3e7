"""Waiting for the next task of a client whose last one has just ended."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.messages import Done, Message
from tests.worker.engines import Rig
from worker.engine.scheduling.arrivals import LONGEST_S, ArrivalPredictor
from worker.engine.task import EngineJob, Stop

STEP_S = 0.01


def follow(one: ArrivalPredictor, n_came: int, n_ended: int = 1) -> bool:
    """Let tasks end, and others come while the step after that computes, or in a wait before it."""
    one.ended(n_ended)
    one.came(0)
    if one.wait_s(STEP_S):
        one.waited(n_came)
        return True
    one.ended(0)
    one.came(n_came)
    return False


def test_nobody_is_waited_for_until_tasks_have_followed_others() -> None:
    one = ArrivalPredictor(is_on=True)
    waits = [follow(one, 1) for _ in range(30)]
    assert not any(waits[:5])
    assert all(waits[10:])


def test_it_ends_when_nobody_comes_and_begins_again_when_they_do() -> None:
    one = ArrivalPredictor(is_on=True, trust=1.0)
    waits = [follow(one, 0) for _ in range(100)]
    assert sum(waits) < 6
    assert any(follow(one, 1) for _ in range(30))


def test_waits_in_vain_stay_few_where_tasks_come_during_the_step_but_not_before() -> None:
    one = ArrivalPredictor(is_on=True)
    n_waits = 0
    for _ in range(1000):
        one.ended(1)
        one.came(0)
        if one.wait_s(STEP_S):
            n_waits += 1
            one.waited(0)
        one.ended(0)
        one.came(1)
    assert n_waits < 300


def test_half_of_those_that_ended_are_not_all() -> None:
    one = ArrivalPredictor(is_on=True, trust=1.0)
    for _ in range(50):
        follow(one, 1, n_ended=4)
    assert not follow(one, 1, n_ended=4)


def test_successors_that_are_there_already_are_not_waited_for() -> None:
    one = ArrivalPredictor(is_on=True, trust=1.0)
    one.ended(1)
    one.came(1)
    assert one.wait_s(STEP_S) == 0.0


def test_without_steps_there_is_nothing_to_learn() -> None:
    one = ArrivalPredictor(is_on=True, trust=0.8)
    one.ended(2)
    one.rest()
    one.came(0)
    one.ended(0)
    one.came(0)
    assert one.trust == 0.8


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=50),
    st.floats(0, 1),
    st.booleans(),
)
def test_a_wait_is_never_longer_than_the_step_that_it_holds_up(
    turns: list[tuple[int, int]], step_s: float, is_on: bool
) -> None:
    one = ArrivalPredictor(is_on)
    for n_ended, n_came in turns:
        one.ended(n_ended)
        one.came(n_came)
        wait_s = one.wait_s(step_s)
        assert 0.0 <= wait_s <= min(step_s, LONGEST_S)
        assert is_on or wait_s == 0.0
        if wait_s:
            one.waited(n_came)
        assert 0.0 <= one.trust <= 1.0


# ---- the engine ---------------------------------------------------------------------------------


class ClosedLoop(Rig):
    """Clients that do something as soon as they have an answer."""

    n_left = 0

    def _emit(self, messages: Sequence[Message], due_s: float) -> None:
        super()._emit(messages, due_s)
        for message in messages:
            if type(message) is Done:
                self.answered()

    def answered(self) -> None:
        """Send the next task."""
        if self.n_left:
            self.n_left -= 1
            self.submit(f"task {self.n_left}", n_predict=2 + self.n_left % 5, seed=1)

    def work(self, n_tasks: int) -> None:
        """Have so many tasks done, four at once."""
        self.n_left = n_tasks - 4
        for i in range(4):
            self.submit(f"first {i}", n_predict=2 + i)
        while sum(type(message) is Done for message in self.emitted) < n_tasks:
            self.turn()

    def until_one_ends(self) -> None:
        """Let one of two tasks end, whose end nobody has heard of yet; trust is at its highest."""
        self.engine._anticipation.trust = 1.0
        self.submit("long", n_predict=50)
        self.submit("short", n_predict=2)
        while not self.engine._anticipation.n_missing:
            self.turn()


def loop(*, anticipates: bool) -> ClosedLoop:
    return ClosedLoop(n_slots=4, anticipates=anticipates, step_ms=1.0)


def test_the_next_task_of_a_client_is_in_the_next_step() -> None:
    plain, waiting = loop(anticipates=False), loop(anticipates=True)
    for rig in (plain, waiting):
        rig.work(60)
    assert waiting.engine.counters.held_s > 0.0 == plain.engine.counters.held_s
    assert waiting.engine.counters.n_decode < plain.engine.counters.n_decode
    assert waiting.engine.counters.n_predicted == plain.engine.counters.n_predicted


def test_a_task_that_comes_in_a_wait_is_part_of_the_step_behind_it() -> None:
    rig = loop(anticipates=True)
    rig.n_left = 1
    rig.until_one_ends()
    rig.turn()
    assert rig.engine.n_busy == 2
    assert rig.engine.counters.held_s > 0.0


def test_a_call_that_comes_in_a_wait_is_done_before_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, done_at = loop(anticipates=True), []
    rig.until_one_ends()
    n_decode = rig.engine.counters.n_decode
    work = EngineJob(99, 0, lambda: done_at.append(rig.engine.counters.n_decode), is_heavy=True)
    monkeypatch.setattr(rig, "answered", lambda: rig.engine.submit(work))
    rig.turn()
    assert done_at == [n_decode]


def test_stopping_in_a_wait_takes_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = loop(anticipates=True)
    rig.until_one_ends()
    n_decode = rig.engine.counters.n_decode
    monkeypatch.setattr(rig, "answered", lambda: rig.engine.submit(Stop()))
    rig.engine.run()
    assert rig.engine.counters.n_decode == n_decode
    assert rig.terminals(1) == rig.terminals(2) == 1
