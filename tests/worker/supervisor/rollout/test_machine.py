"""The state machine of a rolling change, over a fleet without processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config.rollout_config import GoldenConfig
from protocol.process.control import RolloutState
from tests.worker.supervisor.rollout.fleets import PretendedFleet, rollout
from worker.supervisor.rollout.change import Change, Leave, ProcessState, RolloutLimits
from worker.supervisor.rollout.machine import Rollout

GIVEN = RolloutLimits(golden=(GoldenConfig(prompt="2+2=", answer="ye"),))
COMPARED = RolloutLimits(golden=(GoldenConfig(prompt="2+2="),))


def has_failed(change: Rollout) -> bool:
    return change.report(0.0).state is RolloutState.FAILED


def test_the_new_one_comes_first_where_memory_allows_it() -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    fleet.finish(change)
    assert fleet.log == [
        *("start w-1~2 held", "admit w-1~2", "leave w-1"),
        *("start w-2~2 held", "admit w-2~2", "leave w-2"),
    ]
    report = change.report(fleet.now)
    assert (report.state, report.n_done, report.n_total) == (RolloutState.DONE, 2, 2)
    assert (report.least_serving, report.n_before) == (2, 2)


def test_else_the_old_one_leaves_first_and_never_a_second_one() -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    fleet.room = False
    fleet.finish(change)
    assert fleet.log[:3] == ["leave w-1", "start w-1~2 held", "admit w-1~2"]
    assert fleet.least == change.report(fleet.now).least_serving == 1
    assert set(fleet.states) == {"w-1~2", "w-2~2"}


def test_the_next_one_waits_until_the_others_serve() -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    fleet.states["w-2"] = ProcessState.DEAD
    fleet.advance(change)
    assert fleet.log == []
    fleet.states["w-2"] = ProcessState.READY
    fleet.advance(change)
    assert fleet.log == ["start w-1~2 held"]


def test_it_gives_up_if_they_never_do() -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    fleet.states["w-2"] = ProcessState.DEAD
    fleet.finish(change)
    assert has_failed(change)
    assert change.report(0).why == "w-2 did not become ready"
    assert fleet.log == []


def test_a_worker_is_added_and_one_removed() -> None:
    fleet = PretendedFleet.of(1)
    both = [Change(model="m", new="w-9"), Change(model="m", old="w-1")]
    fleet.finish(Rollout(1, both, RolloutLimits(), 0.0))
    assert fleet.log == ["start w-9 held", "admit w-9", "leave w-1"]


@pytest.mark.parametrize("room", [True, False])
def test_a_wrong_answer_goes_back(room: bool) -> None:
    fleet, change = PretendedFleet.of(3), rollout(3, GIVEN)
    fleet.room, fleet.texts["w-2~2"] = room, "no"
    fleet.finish(change)
    assert set(fleet.states) == {"w-1", "w-2", "w-3"}
    assert not fleet.held
    assert "admit w-2~2" not in fleet.log
    assert fleet.least == 3 - (not room)
    report = change.report(fleet.now)
    assert report.state is RolloutState.FAILED
    assert report.why == "w-2~2 gives another answer to a golden prompt: 'no' instead of 'ye'"


def test_answers_are_compared_with_the_old_workers_if_they_must_be_equal() -> None:
    fleet, change = PretendedFleet.of(1), rollout(1, COMPARED, is_comparable=True)
    fleet.finish(change)
    assert fleet.log[:3] == ["ask w-1", "start w-1~2 held", "ask w-1~2"]
    assert not has_failed(change)


def test_a_difference_to_the_old_workers_counts_when_it_is_seen_again() -> None:
    fleet, change = PretendedFleet.of(1), rollout(1, COMPARED, is_comparable=True)
    fleet.texts["w-1~2"] = "no"
    fleet.finish(change)
    assert fleet.log.count("ask w-1~2") == fleet.log.count("ask w-1") == 3
    assert has_failed(change)
    assert set(fleet.states) == {"w-1"}


def test_with_another_model_the_old_workers_are_not_asked() -> None:
    fleet, change = PretendedFleet.of(1), rollout(1, COMPARED)
    fleet.texts["w-1~2"] = "something else"
    fleet.finish(change)
    assert "ask w-1" not in fleet.log
    assert not has_failed(change)


def test_no_answer_goes_back() -> None:
    fleet, change = PretendedFleet.of(1), rollout(1, GIVEN)
    for _ in range(3):
        fleet.advance(change)
        if fleet.steps and fleet.log[-1].startswith("start"):
            fleet.obey(fleet.steps[0])
    assert fleet.log[-1] == "ask w-1~2"
    fleet.told[1] = "it has no slot"
    fleet.steps.clear()
    fleet.finish(change)
    assert change.report(0).why == "w-1~2 does not answer: it has no slot"


@pytest.mark.parametrize("room", [True, False])
def test_one_that_does_not_start_goes_back(room: bool) -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    fleet.room, fleet.broken = room, {"w-2~2"}
    fleet.finish(change)
    assert change.report(0).why == "w-2~2 did not start: it is broken"
    assert set(fleet.states) == {"w-1", "w-2"}
    assert fleet.least >= 1


def test_one_that_takes_too_long_goes_back() -> None:
    fleet, change = PretendedFleet.of(1), rollout(1)
    fleet.advance(change)
    assert change.deadline == RolloutLimits().start_s
    fleet.now = RolloutLimits().start_s
    fleet.steps.clear()
    fleet.finish(change)
    assert change.report(0).why == "w-1~2 was not ready within 600 s"
    assert set(fleet.states) == {"w-1"}


def test_death_in_probation_goes_back_before_the_old_one_has_left() -> None:
    fleet, change = PretendedFleet.of(1), rollout(1)
    while "admit w-1~2" not in fleet.log:
        fleet.advance(change)
        for step in list(fleet.steps):
            fleet.obey(step)
    fleet.states["w-1~2"] = ProcessState.DEAD
    fleet.finish(change)
    assert "leave w-1" not in fleet.log
    assert change.report(0).why == "w-1~2 has died: it is broken"


def test_death_of_an_earlier_new_one_goes_back_too() -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    while "start w-2~2 held" not in fleet.log:
        fleet.advance(change)
        if fleet.steps:
            fleet.obey(fleet.steps[0])
        elif change.deadline is not None:
            fleet.now = max(fleet.now, change.deadline)
    fleet.states["w-1~2"] = ProcessState.DEAD
    fleet.finish(change)
    assert has_failed(change)
    assert set(fleet.states) == {"w-1", "w-2"}


def test_an_abort_takes_all_back() -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    while "admit w-2~2" not in fleet.log:
        fleet.advance(change)
        if fleet.steps:
            fleet.obey(fleet.steps[0])
        elif change.deadline is not None:
            fleet.now = max(fleet.now, change.deadline)
    change.abort()
    fleet.finish(change)
    assert change.report(0).why == "aborted"
    assert set(fleet.states) == {"w-1", "w-2"}
    assert fleet.least >= 1


def until_it_leaves(fleet: PretendedFleet, change: Rollout, name: str) -> None:
    """Go on until a worker has been told to leave, and has not left yet."""
    while True:
        fleet.advance(change)
        if Leave(name) in fleet.steps:
            return
        if fleet.steps:
            fleet.obey(fleet.steps[0])
        elif change.deadline is not None:
            fleet.now = max(fleet.now, change.deadline)


@pytest.mark.parametrize("room", [True, False])
def test_a_worker_that_leaves_when_all_is_taken_back_is_started_again(room: bool) -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    fleet.room = room
    until_it_leaves(fleet, change, "w-1")
    change.abort()
    for _ in range(3):
        fleet.advance(change)
    fleet.finish(change)
    assert set(fleet.states) == {"w-1", "w-2"}
    assert change.report(0).why == "aborted"


@pytest.mark.parametrize("room", [True, False])
def test_while_a_worker_leaves_nothing_is_due(room: bool) -> None:
    fleet, change = PretendedFleet.of(2), rollout(2)
    fleet.room = room
    until_it_leaves(fleet, change, "w-1")
    assert change.deadline is None
    change.abort()
    fleet.advance(change)
    assert change.deadline is None


def test_a_worker_whose_old_file_is_gone_stays_new() -> None:
    fleet, change = PretendedFleet.of(2), rollout(2, GIVEN)
    fleet.texts["w-2~2"], fleet.replaced = "no", {"w-1", "w-2"}
    fleet.finish(change)
    assert set(fleet.states) == {"w-1~2", "w-2"}
    assert "w-1~2 stays: its old model file has been replaced" in change.report(0).why


def test_going_back_does_not_wait_for_ever() -> None:
    fleet, change = PretendedFleet.of(2), rollout(2, GIVEN)
    fleet.room, fleet.texts["w-2~2"], fleet.broken = False, "no", {"w-1"}
    fleet.finish(change)
    assert has_failed(change)
    assert "w-1 is not ready again after 600 s" in change.report(0).why


@given(st.data())
def test_never_more_than_one_worker_is_missing(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 4), label="workers")
    names = st.sampled_from([f"w-{i}~2" for i in range(1, n + 1)])
    fleet = PretendedFleet.of(n)
    fleet.room = data.draw(st.booleans(), label="room")
    fleet.broken = data.draw(st.sets(names, max_size=1), label="broken")
    fleet.texts = dict.fromkeys(data.draw(st.sets(names, max_size=1), label="wrong"), "no")
    change = rollout(n, data.draw(st.sampled_from([GIVEN, COMPARED, RolloutLimits()])))
    abort_at = data.draw(st.integers(0, 60), label="abort")
    for turn in range(400):
        if turn == abort_at:
            change.abort()
        fleet.advance(change)
        if change.is_over:
            break
        if fleet.steps:
            if turn > 200 or data.draw(st.booleans(), label="obeys"):
                fleet.obey(data.draw(st.sampled_from(fleet.steps)))
        elif change.deadline is not None:
            fleet.now = max(fleet.now, change.deadline)
    assert change.is_over
    assert fleet.least >= n - 1
    wanted = {f"w-{i}" + "~2" * (not has_failed(change)) for i in range(1, n + 1)}
    assert set(fleet.states) == wanted
    assert set(fleet.serving("m")) == wanted
