"""Tasks whose workers die, leave or fail."""

from dataclasses import replace

import pytest

from gateway.pool.dispatch.actions import Action, Assign, Deliver, Fail
from gateway.pool.dispatch.dispatcher import Dispatcher
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import TaskKey
from tests.gateway.dispatching import (
    broken,
    call,
    card,
    dispatcher,
    done,
    failures,
    places,
    read,
    started,
    task,
)


def test_what_has_not_started_moves_to_another_worker_unseen() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    pool.submit(task(3), 0.0)
    pool.ended("b", done(2), 0.0)
    assert pool.worker_lost("a", 1.0) == []
    assert pool.ended("b", done(3), 2.0)[1:] == [Assign("b", 1, 1, -1)]


def test_what_comes_back_goes_before_what_waited() -> None:
    pool = dispatcher("a", n_slots=2)
    for i in range(4):
        pool.submit(task(i), 0.0)
    pool.worker_lost("a", 1.0)
    pool.worker_hello("b", "b", "m")
    # What was on the dead worker is tried one after the other: one of them may have killed it.
    assert places(pool.worker_ready("b", card(4), 2.0)) == [(0, "b"), (2, "b"), (3, "b")]
    assert places(read(pool, "b", 0, attempt=1)) == [(1, "b")]


@pytest.mark.parametrize("continues", [True, False])
def test_what_a_client_has_seen_a_part_of_goes_on_elsewhere_unless_told_otherwise(
    continues: bool,
) -> None:
    pool = dispatcher("a", "b")
    pool.submit(replace(task(1), continues=continues), 0.0)
    assert pool.started("a", started(1), 0.5)
    pool.delta_came("a", TaskKey(1), 0.6)
    actions = pool.worker_lost("a", 1.0)
    if continues:
        assert actions == [Assign("b", 1, 1, -1)]
    else:
        assert failures(actions) == {1: ErrorCode.LOST}
        assert pool.n_tasks == 0


def test_what_acts_on_a_slot_ends_with_its_worker() -> None:
    pool = dispatcher("a", "b")
    pool.submit(replace(call(1, worker="a"), slot=0, is_bound=True), 0.0)
    (lost,) = pool.worker_lost("a", 1.0)
    assert isinstance(lost, Fail)
    assert lost.error.code is ErrorCode.LOST
    assert "the slot with it" in lost.error.message


def test_what_has_started_unseen_begins_anew_elsewhere() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    assert pool.started("a", started(1), 0.5)
    assert pool.worker_lost("a", 1.0) == [Assign("b", 1, 1, -1)]
    assert pool.started("b", started(1, attempt=1), 1.5)


def test_an_answer_that_goes_out_whole_begins_anew_until_it_is_there() -> None:
    pool = dispatcher("a", "b")
    pool.submit(replace(task(1), is_whole=True), 0.0)
    pool.started("a", started(1), 0.5)
    pool.delta_came("a", TaskKey(1), 0.6)
    assert pool.worker_lost("a", 1.0) == [Assign("b", 1, 1, -1)]


@pytest.mark.parametrize("code", [ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE])
def test_what_one_worker_fails_unseen_another_tries(code: ErrorCode) -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    assert pool.ended("a", broken(1, code=code), 1.0) == [Assign("b", 1, 1, -1)]
    assert pool.ended("b", done(1, attempt=1), 2.0) == [Deliver(done(1, attempt=1))]


def test_a_busy_other_is_waited_for_rather_than_asking_the_same_again() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    assert pool.ended("a", broken(1), 1.0) == []
    assert places(pool.submit(task(3), 1.0)) == [(3, "a")]
    assert pool.ended("b", done(2), 2.0)[1:] == [Assign("b", 1, 1, -1)]


def test_what_two_workers_failed_is_not_passed_on() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(task(1), 0.0)
    pool.ended("a", broken(1), 1.0)
    failed = broken(1, attempt=1, code=ErrorCode.UNAVAILABLE)
    assert failures(pool.ended("b", failed, 2.0)) == {1: ErrorCode.INTERNAL}
    assert pool.n_tasks == 0
    assert pool.workers["c"].tasks == {}


def test_the_only_workers_failure_is_handed_on() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    assert pool.ended("a", broken(1), 1.0) == [Deliver(broken(1))]


def test_the_clients_own_mistake_is_not_tried_again() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    wrong = broken(1, code=ErrorCode.INVALID_REQUEST)
    assert pool.ended("a", wrong, 1.0) == [Deliver(wrong)]


def test_what_fails_after_a_part_of_its_answer_is_tried_again_where_there_is_no_other() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    pool.started("a", started(1), 0.5)
    pool.tasks[1].answer.tokens.extend((7, 8))
    pool.delta_came("a", TaskKey(1), 0.6)
    assert pool.ended("a", broken(1), 1.0) == [Assign("a", 1, 1, -1)]
    again = broken(1, attempt=1)
    assert failures(pool.ended("a", again, 2.0)) == {1: ErrorCode.INTERNAL}


def test_failures_at_different_places_of_an_answer_do_not_add_up() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    for attempt in range(6):
        worker = "ab"[attempt % 2]
        assert pool.tasks[1].worker == worker
        pool.started(worker, started(1, attempt=attempt), 1.0)
        pool.tasks[1].answer.tokens.append(attempt)
        pool.delta_came(worker, TaskKey(1, attempt), 1.0)
        pool.tasks[1].tried.clear()
        pool.ended(worker, broken(1, attempt=attempt), 1.0)
    assert pool.n_tasks == 1


def test_a_lost_stream_waits_for_the_first_worker_that_comes_until_its_deadline() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    pool.started("a", started(1), 0.5)
    pool.delta_came("a", TaskKey(1), 0.6)
    assert pool.worker_lost("a", 8.0) == []
    assert pool.expire(17.9) == []
    assert failures(pool.expire(18.1)) == {1: ErrorCode.UNAVAILABLE}


def test_a_task_that_no_worker_could_serve_did_not_wait_for_a_slot() -> None:
    """All hosts are cut off: the client has sent nothing too fast."""
    pool = dispatcher("a")
    pool.worker_lost("a", 0.0)
    pool.submit(task(1), 1.0)
    (failed,) = pool.expire(11.0)
    assert isinstance(failed, Fail) and failed.error.code is ErrorCode.UNAVAILABLE
    assert failed.error.message == "No worker was ready within 10 s"


def test_a_worker_that_left_by_its_own_will_killed_nobody() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(task(1), 0.0)
    assert places(pool.worker_lost("a", 1.0, died=False)) == [(1, "b")]
    assert places(pool.worker_lost("b", 2.0)) == [(1, "c")]


def test_a_stream_ends_at_once_if_its_model_was_unloaded_before_its_worker_is_missed() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    read(pool, "a", 1)
    assert pool.abandon("m") == []
    (action,) = pool.worker_lost("a", 1.0, died=False)
    assert isinstance(action, Fail)
    assert (action.task_id, action.error.message) == (1, "model 'm' was unloaded")
    assert pool.tasks == {}
    pool.worker_hello("b", "b", "m")  # loaded again
    pool.worker_ready("b", card(), 2.0)
    pool.submit(task(2), 2.0)
    read(pool, "b", 2)
    assert pool.worker_lost("b", 3.0) == []


def test_a_stream_of_an_unloaded_model_goes_on_at_a_worker_that_is_left() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    read(pool, "a", 1)
    pool.abandon("m")
    assert places(pool.worker_lost("a", 1.0, died=False)) == [(1, "b")]
    assert failures(pool.worker_lost("b", 2.0, died=False)) == {1: ErrorCode.UNAVAILABLE}


def test_what_comes_after_its_model_was_unloaded_does_not_wait_for_a_worker() -> None:
    pool = dispatcher("a")
    pool.abandon("m")
    pool.worker_lost("a", 1.0, died=False)
    with pytest.raises(TaskError, match="model 'm' was unloaded") as caught:
        pool.submit(task(1), 2.0)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    pool.worker_hello("b", "b", "m")  # it is loaded again
    pool.submit(task(2), 3.0)
    assert list(pool.tasks) == [2]


def join(pool: Dispatcher, name: str, fingerprint: str, n_slots: int = 1) -> list[Action]:
    pool.worker_hello(name, name, "m")
    return pool.worker_ready(name, card(n_slots, fingerprint=fingerprint), 0.0)


def test_an_answer_goes_on_only_where_the_model_is_the_one_that_began_it() -> None:
    pool = dispatcher()
    join(pool, "a", "old")
    pool.submit(task(1), 0.0)
    read(pool, "a", 1)
    join(pool, "b", "new")
    assert places(pool.worker_lost("a", 0.0)) == []
    assert places(pool.submit(task(2), 0.0)) == [(2, "b")], "nothing waits behind it"
    assert places(pool.ended("b", done(2), 0.0)) == []
    assert places(join(pool, "c", "old")) == [(1, "c")]


def test_what_a_draining_worker_has_begun_stays_where_only_other_models_are() -> None:
    pool = dispatcher()
    join(pool, "a", "old", n_slots=3)
    for i in (1, 2, 3):
        pool.submit(task(i), 0.0)
    read(pool, "a", 1)
    read(pool, "a", 2)
    join(pool, "b", "new", n_slots=3)
    assert places(pool.worker_leaves("a", 0.0)) == [(3, "b")]
    assert places(join(pool, "c", "old")) == [(1, "c")]


def test_an_answer_that_starts_again_may_start_at_another_model() -> None:
    pool = dispatcher()
    join(pool, "a", "old")
    pool.submit(replace(task(1), is_whole=True, continues=False), 0.0)
    read(pool, "a", 1)
    join(pool, "b", "new")
    assert places(pool.worker_lost("a", 0.0)) == [(1, "b")]


def test_an_answer_whose_model_is_gone_ends_as_one_of_a_lost_worker() -> None:
    pool = dispatcher()
    join(pool, "a", "old")
    pool.submit(task(1), 0.0)
    read(pool, "a", 1)
    join(pool, "b", "new")
    pool.worker_lost("a", 0.0)
    (failed,) = pool.expire(11.0)
    assert isinstance(failed, Fail)
    assert failed.error.code is ErrorCode.UNAVAILABLE
    assert "no other with its model" in failed.error.message
