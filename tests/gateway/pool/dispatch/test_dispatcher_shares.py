"""Shares of tenants in the queue and the slots, and what each tenant is charged."""

import pytest

from gateway.pool.dispatch.actions import CancelTask
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.status import PoolStatus
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Done, Envelope, Finish, Started, TaskKey
from tests.gateway.dispatching import (
    broken,
    card,
    dispatcher,
    done,
    failures,
    places,
    started,
    task,
)


def test_tasks_of_a_tenant_are_served_in_order() -> None:
    pool = dispatcher("a")
    for i in range(4):
        pool.submit(task(i, tenant="t"), 0.0)
    order = [places(pool.ended("a", done(i), 1.0)) for i in range(3)]
    assert order == [[(1, "a")], [(2, "a")], [(3, "a")]]


def test_tenants_are_served_alike_by_tokens() -> None:
    pool = dispatcher("a")
    pool.submit(task(0), 0.0)
    for i in range(1, 5):
        pool.submit(task(i, tenant="big", n_tokens=100), 0.0)
    for i in range(5, 9):
        pool.submit(task(i, tenant="small", n_tokens=10), 0.0)
    order: list[int] = []
    running = 0
    for _ in range(8):
        [(running, _)] = places(pool.ended("a", done(running), 1.0))
        order.append(running)
    assert order == [1, 5, 6, 7, 8, 2, 3, 4]


def test_what_a_task_generated_counts_against_its_tenant() -> None:
    pool = dispatcher("a")
    pool.submit(task(1, tenant="x"), 0.0)
    pool.submit(task(2, tenant="x"), 0.0)
    pool.submit(task(3, tenant="y"), 0.0)
    pool.submit(task(4, tenant="y"), 0.0)
    assert places(pool.ended("a", done(1, n_predicted=500), 1.0)) == [(3, "a")]
    assert places(pool.ended("a", done(3, n_predicted=5), 1.0)) == [(4, "a")]


def test_a_full_queue_gives_a_place_of_who_has_most_to_who_has_less() -> None:
    pool = dispatcher("a", queue_size=4)
    for i in range(5):
        pool.submit(task(i, tenant="greedy"), 0.0)
    assert failures(pool.submit(task(5, tenant="late"), 1.0)) == {4: ErrorCode.OVERLOADED}
    assert failures(pool.submit(task(6, tenant="late"), 1.0)) == {3: ErrorCode.OVERLOADED}
    for tenant in ("late", "greedy"):
        with pytest.raises(TaskError, match="The queue is full"):
            pool.submit(task(7, tenant=tenant), 1.0)


def test_a_full_queue_of_one_model_is_not_anothers() -> None:
    pool = dispatcher("a", queue_size=1)
    pool.worker_hello("b", "b", "other")
    pool.worker_ready("b", card(1, name="other"), 0.0)
    for i in range(2):
        pool.submit(task(i), 0.0)
        pool.submit(task(10 + i, model="other"), 0.0)
    assert pool.queue.depths() == {"m": 1, "other": 1}


def test_the_time_to_retry_is_that_of_the_model_alone() -> None:
    pool = dispatcher("a", queue_size=1)
    pool.worker_hello("b", "b", "fast")
    pool.worker_ready("b", card(1, name="fast"), 0.0)
    for i in range(20):
        for key, model, n_s in (("a", "m", 20.0), ("b", "fast", 0.1)):
            one = task(2 * i + (model == "m"), model=model)
            pool.submit(one, 1.0)
            pool.started(key, started(one.task_id), 1.0)
            pool.ended(key, done(one.task_id, n_predicted=1), 1.0 + n_s)
    waits: dict[str, int] = {}
    for model, first in (("m", 100), ("fast", 200)):
        with pytest.raises(TaskError) as caught:
            for i in range(3):
                pool.submit(task(first + i, model=model), 2.0)
        waits[model] = caught.value.detail["retry_after_s"]
    assert waits["m"] >= 20
    assert waits["fast"] == 1


def test_who_hangs_up_is_charged_for_what_was_generated() -> None:
    pool = dispatcher("a")
    pool.submit(task(1, tenant="x", n_tokens=10), 0.0)
    pool.started("a", started(1, n_prompt=10), 0.0)
    for i, tenant in ((2, "x"), (3, "y")):
        pool.submit(task(i, tenant=tenant, n_tokens=100), 0.0)
    assert pool.cancel(1) == [CancelTask("a", 1, 0)]
    gone = Envelope(TaskKey(1), Done(finish=Finish.CANCELLED, n_predicted=5000))
    assert pool.book.find("a", gone.task)
    assert places(pool.ended("a", gone, 1.0)) == [(3, "a")]
    assert not pool.book.find("a", gone.task)


def bad_before_good() -> Dispatcher:
    """Return a pool of one slot with task 1 of four of `bad`, before two of `good`, 5 and 6."""
    pool = dispatcher("a")
    for i in range(1, 7):
        pool.submit(task(i, tenant="bad" if i < 5 else "good"), 0.0)
    return pool


def test_requests_that_are_refused_count_by_the_time_that_they_took() -> None:
    pool = bad_before_good()
    assert places(pool.ended("a", broken(1, code=ErrorCode.INVALID_REQUEST), 5.0)) == [(5, "a")]
    assert places(pool.ended("a", done(5, n_predicted=20), 6.0)) == [(6, "a")]


def test_a_guess_that_is_given_back_puts_nobody_behind() -> None:
    """A key whose long prompts were all refused let another one wait 31 s for its first turn."""
    pool = dispatcher("a", n_prefetch=1)
    for i in range(1, 8):
        pool.submit(task(i, tenant="bad", n_tokens=10_000), 0.0)
    pool.submit(task(8, tenant="good"), 0.0)
    assert places(pool.ended("a", broken(1, code=ErrorCode.INVALID_REQUEST), 5.0)) == [(8, "a")]


def test_a_guess_that_is_given_back_raises_no_level_for_later() -> None:
    pool = dispatcher("a", n_prefetch=1)
    for i in (1, 2):
        pool.submit(task(i, tenant="bad", n_tokens=10_000), 0.0)
    pool.submit(task(3, tenant="good"), 0.0)  # nobody waits
    pool.submit(task(4, tenant="bad", n_tokens=10_000), 0.0)
    refused = ErrorCode.INVALID_REQUEST
    assert places(pool.ended("a", broken(1, code=refused), 1.0)) == [(3, "a")]
    pool.ended("a", broken(2, code=refused), 2.0)
    pool.ended("a", done(3), 2.0)
    for i in range(5, 9):
        pool.submit(task(i, tenant="bad", n_tokens=10_000), 2.0)
    pool.submit(task(9, tenant="good"), 2.0)
    assert places(pool.ended("a", broken(4, code=refused), 3.0)) == [(9, "a")]


def test_who_hangs_up_before_it_began_counts_by_the_time_that_it_took() -> None:
    pool = bad_before_good()
    pool.cancel(1, 5.0)
    void = Envelope(TaskKey(1), Done(finish=Finish.CANCELLED))
    assert places(pool.ended("a", void, 5.0)) == [(5, "a")]
    assert places(pool.ended("a", done(5, n_predicted=20), 6.0)) == [(6, "a")]


def test_who_hangs_up_at_once_pays_nothing() -> None:
    pool = dispatcher("a", n_prefetch=1)
    pool.submit(task(1, tenant="z"), 0.0)
    pool.submit(task(2, tenant="x", n_tokens=1000), 0.0)
    pool.submit(task(3, tenant="y", n_tokens=10), 0.0)
    pool.submit(task(4, tenant="x", n_tokens=10), 0.0)
    pool.submit(task(5, tenant="y", n_tokens=10), 0.0)
    pool.cancel(2)
    void = Envelope(TaskKey(2), Done(finish=Finish.CANCELLED))
    assert places(pool.ended("a", void, 0.0)) == [(3, "a")]
    assert places(pool.ended("a", done(3), 1.0)) == [(4, "a")]


def test_a_start_that_comes_after_the_client_has_gone_is_still_charged() -> None:
    pool = dispatcher("a")
    pool.submit(task(1, tenant="x"), 0.0)
    for i, tenant in ((2, "x"), (3, "y")):
        pool.submit(task(i, tenant=tenant, n_tokens=100), 0.0)
    pool.cancel(1)
    assert not pool.started("a", started(1, n_prompt=400), 0.5)
    gone = Envelope(TaskKey(1), Done(finish=Finish.CANCELLED))
    assert places(pool.ended("a", gone, 1.0)) == [(3, "a")]


def test_cached_tokens_of_a_prompt_are_cheap() -> None:
    pool = dispatcher("a")
    pool.submit(task(0, tenant="z"), 0.0)
    for i, tenant in enumerate("xyxy", start=1):
        pool.submit(task(i, tenant=tenant), 0.0)
    assert places(pool.ended("a", done(0), 1.0)) == [(1, "a")]
    pool.started("a", Envelope(TaskKey(1), Started(slot=0, n_prompt=1000, n_cached=990)), 1.0)
    assert places(pool.ended("a", done(1), 2.0)) == [(2, "a")]
    pool.started("a", Envelope(TaskKey(2), Started(slot=0, n_prompt=500)), 2.0)
    assert places(pool.ended("a", done(2), 3.0)) == [(3, "a")]


def test_what_waits_in_a_worker_is_counted_as_deferred() -> None:
    pool = dispatcher("a", n_slots=2, n_prefetch=1)
    for i in range(4):
        pool.submit(task(i), 0.0)
    assert pool.queue.depths() == {"m": 1}
    assert PoolStatus(pool).queue_depths() == {"m": 2}
