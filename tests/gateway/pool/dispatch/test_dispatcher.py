"""Decisions of the dispatcher, one rule a test."""

import pytest

from gateway.pool.dispatch.actions import Assign, CancelTask, Deliver
from gateway.pool.dispatch.dispatcher import Dispatcher
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Envelope, TaskKey, Tokenized
from tests.gateway.dispatching import call, card, dispatcher, done, failures, places, started, task


def test_a_free_slot_takes_the_task_at_once() -> None:
    pool = dispatcher("a")
    assert pool.submit(task(1), 0.0) == [Assign("a", 1, 0, -1)]
    assert repr(pool) == "<Dispatcher workers=1 tasks=1 waiting=0 taken=1>"
    assert repr(pool.workers["a"]) == "<Worker a ready model=m taken=1/1+0>"


def test_a_task_waits_when_no_slot_is_free() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    assert pool.submit(task(2), 0.0) == []
    assert len(pool.queue) == 1


def test_the_terminal_message_frees_the_slot_for_the_next_task() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    assert pool.ended("a", done(1), 1.0) == [Deliver(done(1)), Assign("a", 2, 0, -1)]


def test_the_worker_with_most_free_slots_is_chosen() -> None:
    pool = dispatcher("a", "b", n_slots=2)
    assert [places(pool.submit(task(i), 0.0)) for i in range(4)] == [
        [(0, "a")],
        [(1, "b")],
        [(2, "a")],
        [(3, "b")],
    ]


def test_of_equally_free_workers_the_one_used_longest_ago_is_chosen() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    pool.ended("a", done(1), 0.0)
    assert places(pool.submit(task(2), 0.0)) == [(2, "b")]


def test_prefetch_is_used_only_when_no_worker_has_a_free_slot() -> None:
    pool = dispatcher("a", "b", n_prefetch=1)
    chosen = [places(pool.submit(task(i), 0.0)) for i in range(5)]
    assert chosen == [[(0, "a")], [(1, "b")], [(2, "a")], [(3, "b")], []]


def test_cancel_of_a_running_task_keeps_its_credit_until_the_terminal_message() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    assert pool.cancel(1) == [CancelTask("a", 1, 0)]
    assert pool.n_tasks == 1
    assert pool.ended("a", done(1), 1.0) == [Assign("a", 2, 0, -1)]


def test_cancel_of_a_waiting_task_needs_nobody() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    assert pool.cancel(2) == []
    assert pool.cancel(2) == []
    assert len(pool.queue) == 0


def test_a_full_queue_refuses_with_a_measured_time() -> None:
    pool = dispatcher("a", queue_size=1)
    for i in range(20):
        pool.submit(task(i), 1.0)
        pool.started("a", started(i), 1.0)
        pool.ended("a", done(i, n_predicted=1), 9.0)
    pool.submit(task(100), 0.0)
    pool.submit(task(101), 0.0)
    with pytest.raises(TaskError) as caught:
        pool.submit(task(102), 0.0)
    assert caught.value.code is ErrorCode.OVERLOADED
    assert 8 <= caught.value.detail["retry_after_s"] <= 16
    assert pool.n_tasks == 2


def test_the_queue_grows_with_the_slots() -> None:
    assert dispatcher("a").limits.limit("m") == 16
    assert dispatcher("a", "b", n_slots=8).limits.limit("m") == 64
    assert dispatcher("a", "b", n_slots=8).limits.limit("another") == 16
    assert dispatcher("a", n_slots=8, queue_size=3).limits.limit("m") == 3


def test_a_task_that_waited_too_long_is_failed() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 1.0)
    pool.submit(task(3), 5.0)
    assert pool.expire(10.9) == []
    assert failures(pool.expire(11.0)) == {2: ErrorCode.OVERLOADED}
    assert places(pool.ended("a", done(1), 12.0)) == [(3, "a")]


def test_idling_saves_up_no_share() -> None:
    pool = dispatcher("a")
    pool.submit(task(0, tenant="busy"), 0.0)
    for i in range(1, 6):
        pool.submit(task(i, tenant="busy", n_tokens=10), 0.0)
        pool.ended("a", done(i - 1, n_predicted=1000), 0.0)
    for i in range(6, 9):
        pool.submit(task(i, tenant="busy", n_tokens=10), 0.0)
    for i in range(9, 12):
        pool.submit(task(i, tenant="late", n_tokens=10), 0.0)
    order: list[int] = []
    running = 5
    for _ in range(6):
        [(running, _)] = places(pool.ended("a", done(running, n_predicted=1000), 1.0))
        order.append(running)
    assert order == [9, 6, 10, 7, 11, 8]


def test_a_pinned_task_waits_for_its_slot_and_holds_up_nobody() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1, worker="a", slot=0), 0.0)
    assert pool.submit(task(2, worker="a", slot=0), 0.0) == []
    assert places(pool.submit(task(3), 0.0)) == [(3, "b")]
    assert pool.ended("a", done(1), 1.0)[1:] == [Assign("a", 2, 0, 0)]


def test_slot_ids_are_stable_over_a_restart_and_wrap_beyond_the_last() -> None:
    pool = dispatcher("a", "b", n_slots=2)
    pool.worker_lost("a", 0.0)
    pool.worker_hello("a2", "a", "m")
    pool.worker_ready("a2", card(2), 0.0)
    assert repr(pool.slots) == "<SlotMap a:0-1 b:2-3>"
    assert [pool.slots.locate("m", i) for i in (0, 3, 5)] == [("a", 0), ("b", 1), ("a", 1)]


def test_slot_ids_follow_from_the_names_in_whatever_order_workers_come() -> None:
    orders = [("w-1", "w-2", "w-10"), ("w-10", "w-2", "w-1"), ("w-2", "w-10", "w-1")]
    shown = {repr(dispatcher(*names, n_slots=2).slots) for names in orders}
    assert shown == {"<SlotMap w-1:0-1 w-2:2-3 w-10:4-5>"}
    assert repr(dispatcher("w-01", "w-1").slots) == repr(dispatcher("w-1", "w-01").slots)


def test_a_worker_that_grew_moves_those_behind_it() -> None:
    pool = dispatcher("a", "b", n_slots=2)
    pool.worker_lost("a", 0.0)
    pool.worker_hello("a2", "a", "m")
    pool.worker_ready("a2", card(3), 0.0)
    assert repr(pool.slots) == "<SlotMap a:0-2 b:3-4>"


def test_ids_wrap_within_the_slots_of_their_model() -> None:
    pool = dispatcher("a", n_slots=2)
    pool.worker_hello("b", "b", "other")
    pool.worker_ready("b", card(2, name="other"), 0.0)
    assert pool.slots.locate("other", 0) == ("b", 0)
    assert pool.slots.locate("nobody", 0) == ("", -1)


def test_a_draining_worker_finishes_what_it_has_and_gets_no_more() -> None:
    pool = dispatcher("a", n_slots=2)
    pool.submit(task(1), 0.0)
    pool.worker_leaves("a", 0.0)
    pool.worker_leaves("a", 0.0)
    assert repr(pool.workers["a"]) == "<Worker a leaving model=m taken=1/2+0>"
    assert pool.submit(task(2), 1.0) == []
    assert pool.submit(call(3), 1.0) == []
    assert pool.ended("a", done(1), 2.0) == [Deliver(done(1))]


def test_a_task_for_a_slot_of_a_draining_worker_goes_elsewhere() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1, worker="a", slot=0), 0.0)
    assert pool.submit(task(2, worker="a", slot=0), 0.0) == []
    assert places(pool.worker_leaves("a", 1.0)) == [(2, "b")]
    assert pool.submit(task(3, worker="a", slot=0), 2.0) == []
    assert places(pool.ended("b", done(2), 3.0)) == [(3, "b")]
    assert pool.ended("b", done(3), 4.0) == [Deliver(done(3))]
    assert places(pool.worker_lost("a", 5.0)) == [(1, "b")]


def test_a_task_for_a_slot_of_a_worker_that_has_drained_goes_elsewhere() -> None:
    pool = dispatcher("a", "b")
    pool.worker_leaves("a", 1.0)
    pool.worker_lost("a", 2.0, died=False)
    assert places(pool.submit(task(1, worker="a", slot=0), 3.0)) == [(1, "b")]
    pool.worker_hello("a2", "a", "m")  # its cache is empty, and it may load for minutes
    assert pool.submit(task(2, worker="a", slot=0), 4.0) == []
    assert places(pool.ended("b", done(1), 5.0)) == [(2, "b")]
    pool.worker_ready("a2", card(), 6.0)
    assert places(pool.submit(task(3, worker="a", slot=0), 7.0)) == [(3, "a2")]


def test_a_task_for_a_slot_waits_while_the_connection_of_its_worker_is_made_anew() -> None:
    pool = dispatcher("a", "b")
    pool.worker_lost("a", 1.0)
    assert pool.submit(task(1, worker="a", slot=0), 2.0) == []
    assert pool.expire(3.9) == []
    pool.worker_hello("a2", "a", "m")
    assert places(pool.worker_ready("a2", card(), 3.9)) == [(1, "a2")]
    assert pool.expire(9.0) == []


def test_a_task_for_a_slot_of_a_worker_that_does_not_come_back_goes_elsewhere() -> None:
    """A host that fails must not cost its clients the time of the queue while others are idle."""
    pool = dispatcher("a", "b", n_slots=2)
    assert places(pool.submit(task(1, worker="a", slot=0), 0.0)) == [(1, "a")]
    pool.worker_lost("a", 1.0)
    assert pool.submit(task(2, worker="a", slot=0), 2.0) == []
    assert places(pool.expire(4.0)) == [(1, "b"), (2, "b")]
    pool.ended("b", done(2), 5.0)
    assert places(pool.submit(task(3, worker="a", slot=0), 6.0)) == [(3, "b")]


def test_a_task_for_a_slot_of_a_worker_that_is_gone_for_good_goes_elsewhere() -> None:
    """A reload may take a worker out of the configuration that has just died."""
    pool = dispatcher("a", "b")
    pool.worker_lost("a", 1.0)
    pool.submit(task(1, worker="a", slot=0), 2.0)
    pool.worker_hello("a2", "a", "m")
    assert pool.worker_forgotten("a", 3.0) == (False, [])
    pool.worker_lost("a2", 4.0)
    was_forgotten, actions = pool.worker_forgotten("a", 5.0)
    assert was_forgotten and places(actions) == [(1, "b")]


def test_a_worker_that_leaves_before_it_was_ready_never_becomes_ready() -> None:
    pool = Dispatcher()
    pool.worker_hello("a", "a", "m")
    pool.submit(task(1), 0.0)
    pool.worker_leaves("a", 0.0)
    assert pool.worker_ready("a", card(), 0.0) == []


def test_a_late_terminal_message_returns_the_credit_and_goes_nowhere() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    pool.cancel(1)
    assert pool.ended("a", done(1), 1.0) == []
    assert pool.ended("a", done(1), 1.0) == []
    assert repr(pool.workers["a"]) == "<Worker a ready model=m taken=0/1+0>"


def test_a_worker_cannot_end_what_it_does_not_have() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    assert pool.ended("b", done(1), 1.0) == []
    assert pool.ended("a", done(1, attempt=7), 1.0) == []
    assert not pool.started("b", started(1), 1.0)
    assert pool.n_tasks == 1


def test_a_second_started_changes_nothing() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    assert pool.started("a", started(1), 0.0)
    assert not pool.started("a", started(1), 0.0)


def test_a_call_needs_no_slot() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    assert places(pool.submit(call(2), 0.0)) == [(2, "a")]
    answer = Envelope(TaskKey(2), Tokenized(tokens=b""))
    assert pool.ended("a", answer, 1.0) == [Deliver(answer)]
    assert pool.cancel(2) == []


def test_a_call_waits_for_a_worker_of_a_known_model() -> None:
    pool = dispatcher("a")
    pool.worker_lost("a", 0.0)
    assert pool.submit(call(1), 0.0) == []
    pool.worker_hello("b", "b", "m")
    assert places(pool.worker_ready("b", card(), 1.0)) == [(1, "b")]


def test_calls_wait_in_the_queue_beyond_their_bound_and_go_on_as_others_end() -> None:
    pool = dispatcher("a", queue_size=2)
    assert all(places(pool.submit(call(i), 0.0)) == [(i, "a")] for i in range(16))
    assert [places(pool.submit(call(i), 0.0)) for i in (16, 17)] == [[], []]
    with pytest.raises(TaskError) as refused:
        pool.submit(call(18), 0.0)
    assert refused.value.code is ErrorCode.OVERLOADED
    assert places(pool.submit(call(19, worker="a"), 0.0)) == [(19, "a")]  # the gateway's own
    pool.cancel(0)  # nobody waits any more, but it is still being computed
    assert len(pool.queue) == 2
    assert places(pool.ended("a", done(0), 1.0)) == [(16, "a")]
    assert places(pool.ended("a", done(1), 1.0)) == [(17, "a")]


def test_calls_pass_tasks_that_wait_for_a_slot() -> None:
    pool = dispatcher("a")
    for i in range(3):
        pool.submit(task(i), 0.0)
    assert places(pool.submit(call(9), 0.0)) == [(9, "a")]


def test_tasks_wait_for_a_model_that_is_being_loaded() -> None:
    pool = Dispatcher()
    pool.worker_hello("a", "a", "m")
    assert pool.submit(task(1), 0.0) == []
    assert places(pool.worker_ready("a", card(), 1.0)) == [(1, "a")]
    assert pool.worker_ready("a", card(), 1.0) == []


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(TaskError, match="model 'x' not found") as caught:
        dispatcher("a").submit(task(1, model="x"), 0.0)
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_models_do_not_hold_each_other_up() -> None:
    pool = dispatcher("a")
    pool.worker_hello("b", "b", "other")
    pool.worker_ready("b", card(1, name="other"), 0.0)
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    assert places(pool.submit(task(3, model="other"), 0.0)) == [(3, "b")]
    assert pool.queue.depths() == {"m": 1, "other": 0}


def test_draining_takes_nothing_new_and_serves_the_queue() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    pool.drain()
    with pytest.raises(TaskError) as caught:
        pool.submit(task(3), 0.0)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert places(pool.ended("a", done(1), 1.0)) == [(2, "a")]
    assert repr(pool) == "<Dispatcher workers=1 tasks=1 waiting=0 taken=1 draining>"


def test_a_model_that_never_was_ready_is_forgotten_with_its_last_worker() -> None:
    pool = dispatcher("a")
    pool.worker_hello("b", "b", "other")
    pool.worker_hello("c", "c", "other")
    pool.worker_lost("b", 0.0)
    assert set(pool.queue.depths()) == {"m", "other"}
    pool.worker_lost("c", 0.0)
    assert set(pool.queue.depths()) == {"m"}
    pool.worker_lost("a", 0.0)
    assert set(pool.queue.depths()) == {"m"}  # its tasks wait for the next one
