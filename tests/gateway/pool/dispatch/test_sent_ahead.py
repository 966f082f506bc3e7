"""Tasks that wait in a worker for long, while other workers could take them."""

import dataclasses

from gateway.keys.api_key import KeyLimits, PriorityClass
from gateway.pool.dispatch.actions import CancelTask
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import MoveCause
from protocol.errors import ErrorCode
from protocol.wire.messages import Envelope, Failed, TaskKey
from tests.gateway.dispatching import card, dispatcher, done, failures, places, read, started, task

LONG_S = 9.0
"""Longer than a task usually has its slot, shorter than the queue's time limit of 10 s."""


def one_ahead(spec: TaskSpec | None = None, *, queue_size: int = 100) -> Dispatcher:
    """Two workers whose slots are in use, and task 3 in worker `a` behind task 1."""
    pool = dispatcher("a", "b", n_slots=1, n_prefetch=1, queue_size=queue_size)
    for task_id, key in ((1, "a"), (2, "b")):
        assert places(pool.submit(task(task_id), 0.0)) == [(task_id, key)]
        pool.started(key, started(task_id), 0.0)
    assert places(pool.submit(spec or task(3), 0.0)) == [(3, "a")]
    return pool


def in_a_class(task_id: int, tenant: str, priority: PriorityClass) -> TaskSpec:
    limits = KeyLimits(priority=priority)
    return dataclasses.replace(task(task_id, tenant=tenant), limits=limits)


def test_it_moves_to_a_free_slot_before_younger_tasks() -> None:
    pool = one_ahead()
    pool.submit(task(4), 0.0)
    pool.ended("b", done(2), 0.9)
    pool.expire(1.0)
    actions = pool.ended("b", done(4), LONG_S)
    assert CancelTask("a", 3, 0) in actions
    assert places(actions) == [(3, "b")]
    assert pool.tasks[3].cause is MoveCause.OVERDUE


def test_it_goes_before_younger_tasks_where_no_slot_is_free() -> None:
    """Who waits in the queue would be sent ahead to the other worker, again and again."""
    pool = one_ahead()
    for task_id in range(4, 8):
        pool.submit(task(task_id), 0.0)
    pool.ended("b", done(2), 0.9)
    assert [pool.tasks[task_id].worker for task_id in (4, 5)] == ["b", "b"]
    pool.expire(1.0)
    assert places(pool.ended("b", done(4), LONG_S)) == [(3, "b")]
    pool.ended("a", done(3), LONG_S)
    assert places(pool.ended("b", done(5), LONG_S)) == [(7, "b")]
    assert pool.tasks[6].worker == "a"


def test_it_moves_without_another_event() -> None:
    pool = one_ahead()
    assert places(pool.ended("b", done(2), 0.5)) == []
    assert places(pool.expire(0.9)) == []
    assert places(pool.expire(LONG_S)) == [(3, "b")]


def test_its_first_worker_may_have_started_it_meanwhile() -> None:
    pool = one_ahead()
    pool.ended("b", done(2), 0.5)
    pool.expire(LONG_S)
    assert not pool.started("a", started(3), LONG_S)  # of the attempt that was given up
    pool.ended("a", done(3), LONG_S)
    pool.started("b", started(3, attempt=1), LONG_S)
    pool.ended("b", done(3, attempt=1), LONG_S)
    assert 3 not in pool.tasks
    assert {key: worker.n_taken for key, worker in pool.workers.items()} == {"a": 1, "b": 0}


def test_the_worker_that_it_left_may_try_it_when_the_other_fails_with_it() -> None:
    pool = one_ahead()
    pool.ended("b", done(2), 0.5)
    pool.expire(LONG_S)
    pool.ended("a", done(3), LONG_S)
    pool.ended("a", done(1), LONG_S)
    failure = Failed(code=ErrorCode.INTERNAL, message="")
    actions = pool.ended("b", Envelope(TaskKey(3, 1), failure), LONG_S)
    assert places(actions) == [(3, "a")]


def test_it_stays_for_as_long_as_a_slot_is_usually_in_use() -> None:
    pool = one_ahead()
    pool.ended("b", done(2), 0.1)
    assert places(pool.submit(task(4), 0.2)) == [(4, "b")]
    assert pool.tasks[3].worker == "a"


def test_a_higher_class_goes_first() -> None:
    pool = one_ahead(in_a_class(3, "low", PriorityClass.LOW))
    pool.submit(in_a_class(4, "low", PriorityClass.LOW), 0.0)
    pool.started("b", started(4), 0.0)
    pool.submit(in_a_class(5, "high", PriorityClass.HIGH), 0.0)
    pool.ended("b", done(2), 0.9)
    pool.expire(1.0)
    pool.ended("b", done(4), LONG_S)
    assert (pool.tasks[5].worker, pool.tasks[3].worker) == ("b", "a")


def test_one_that_must_have_a_slot_stays_there() -> None:
    pool = one_ahead(task(3, worker="a", slot=0))
    pool.ended("b", done(2), 0.5)
    assert places(pool.expire(LONG_S)) == []
    assert pool.tasks[3].worker == "a"


def test_one_that_waits_for_room_in_a_context_moves_too() -> None:
    """Its worker has a slot for it, but the others need all cells."""
    pool = dispatcher("a", n_slots=2)
    pool.submit(task(1), 0.0)
    pool.started("a", started(1), 0.0)
    pool.submit(task(2), 0.0)
    pool.worker_hello("b", "b", "m")
    pool.worker_ready("b", card(1), 1.0)
    assert places(pool.expire(LONG_S)) == [(2, "b")]


def test_one_that_was_just_sent_is_not_taken_for_waiting() -> None:
    """Nothing else runs in its worker, which may have to load its model first."""
    pool = dispatcher("a", "b", n_slots=1)
    pool.submit(task(1), 0.0)
    assert pool.expire(100.0) == []


def test_the_time_limit_of_the_queue_counts_there_too() -> None:
    pool = one_ahead()
    actions = pool.expire(10.0)
    assert failures(actions) == {3: ErrorCode.OVERLOADED}
    assert CancelTask("a", 3, 0) in actions
    assert pool.workers["a"].n_taken == 2
    pool.ended("a", done(3), 10.1)
    assert pool.workers["a"].n_taken == 1


def test_a_task_that_runs_has_no_time_limit() -> None:
    pool = one_ahead()
    pool.ended("a", done(1), 1.0)
    pool.started("a", started(3), 1.0)
    assert pool.expire(100.0) == []


def test_one_that_has_begun_keeps_no_other_from_moving_to_another_model() -> None:
    pool = dispatcher("c")
    pool.submit(task(1), 0.0)
    read(pool, "c", 1)
    pool.worker_hello("a", "a", "m")
    pool.worker_ready("a", card(1, 2), 0.0)
    for task_id in (2, 3):
        assert places(pool.submit(task(task_id), 0.0)) == [(task_id, "a")]
    pool.started("a", started(2), 0.0)
    assert places(pool.worker_lost("c", 0.0, died=False)) == [(1, "a")]
    pool.worker_hello("b", "b", "m")
    pool.worker_ready("b", card(1, fingerprint="other"), 1.0)
    assert places(pool.expire(LONG_S)) == [(3, "b")]
