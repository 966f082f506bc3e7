"""Who waits, who is refused, and what both are told, where limits of keys meet a full queue."""

import pytest

from gateway.keys.api_key import KeyLimits, PriorityClass
from gateway.pool.dispatch.actions import Fail
from protocol.errors import TaskError
from tests.gateway.dispatching import dispatcher, limited, measure, read, task


def test_a_key_at_its_limit_fills_the_queue_no_further_though_slots_are_free() -> None:
    pool = dispatcher("a", n_slots=8, queue_size=3)
    one = KeyLimits(concurrent=1)
    for i in range(4):
        pool.submit(limited(i, "x", one), 0.0)
    with pytest.raises(TaskError, match="queue is full"):
        pool.submit(limited(9, "x", one), 0.0)
    assert pool.queue.depths() == {"m": 3}


def test_a_request_that_would_be_too_late_takes_no_place_from_another() -> None:
    pool = dispatcher("a", n_slots=1, queue_size=3)
    measure(pool, "x", n=40, service_s=4.0)
    for i in range(4):
        pool.submit(task(i, tenant="x"), 100.0)
    assert pool.queue.ids == {1, 2, 3}
    with pytest.raises(TaskError, match="later than the limit of 1 s"):
        pool.submit(limited(9, "y", KeyLimits(), start_within_s=1.0), 100.0)
    assert pool.queue.ids == {1, 2, 3} and len(pool.tasks) == 4


def test_an_answer_that_has_begun_keeps_its_place_in_a_full_queue() -> None:
    pool = dispatcher("a", n_slots=1, queue_size=1)
    low, normal = (KeyLimits(priority=each) for each in (PriorityClass.LOW, PriorityClass.NORMAL))
    pool.submit(limited(1, "x", low), 0.0)
    read(pool, "a", 1)
    pool.worker_lost("a", 1.0)
    assert pool.queue.ids == {1}
    with pytest.raises(TaskError, match="queue is full"):
        pool.submit(limited(2, "y", normal), 1.0)
    assert pool.queue.ids == {1}


def test_who_gives_its_place_up_is_told_why() -> None:
    pool = dispatcher("a", n_slots=1, queue_size=2)
    low, normal = (KeyLimits(priority=each) for each in (PriorityClass.LOW, PriorityClass.NORMAL))
    for i in range(3):
        pool.submit(limited(i, "x", low), 0.0)
    (for_class,) = [
        a.error for a in pool.submit(limited(8, "y", normal), 0.0) if isinstance(a, Fail)
    ]
    assert for_class.message == "The queue is full, and requests of a higher class go first"
    pool = dispatcher("a", n_slots=1, queue_size=2)
    for i in range(3):
        pool.submit(task(i, tenant="x"), 0.0)
    (for_many,) = [a.error for a in pool.submit(task(8, tenant="y"), 0.0) if isinstance(a, Fail)]
    assert for_many.message == "The queue is full, and clients with fewer requests in it go first"


def test_a_task_held_by_its_key_is_told_how_long_its_own_answers_take() -> None:
    pool = dispatcher("a", n_slots=8)
    one = KeyLimits(concurrent=1)
    measure(pool, "x", n=40, service_s=4.0)
    for i in range(3):
        pool.submit(limited(i, "x", one), 100.0)
    places = [pool.limits.place(pool.tasks[i]) for i in (1, 2)]
    assert [place.position for place in places] == [1, 2]
    assert [place.wait_s for place in places] == pytest.approx([4.0, 8.0], rel=0.2)
    with pytest.raises(TaskError, match=r"after about 1[12].* s, later than") as refused:
        pool.submit(limited(9, "x", one, start_within_s=5.0), 100.0)
    assert refused.value.detail["retry_after_s"] in (11, 12, 13)
    assert pool.submit(limited(10, "y", one, start_within_s=5.0), 100.0)
