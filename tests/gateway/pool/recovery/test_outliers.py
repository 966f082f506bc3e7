"""Workers that live but fail, or are far too slow, get one task at a time until they do well."""

from dataclasses import replace

from gateway.pool.dispatch.actions import Ejected
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.recovery.outliers import OutlierDetection
from protocol.wire.messages import TaskKey
from tests.gateway.dispatching import broken, dispatcher, done, places, read, started, task


def fail(pool: Dispatcher, worker: str, first_id: int, n: int, now: float = 1.0) -> None:
    """Let the next n tasks that a worker gets fail there, whatever else runs."""
    for task_id in range(first_id, first_id + n):
        pool.submit(task(task_id, worker=worker), now)
        attempt = pool.tasks[task_id].attempt
        pool.ended(worker, broken(task_id, attempt=attempt), now)


def test_a_worker_that_fails_five_in_a_row_gets_one_probe_at_a_time() -> None:
    pool = dispatcher("a", "b", n_slots=4)
    fail(pool, "a", 0, 5)
    assert pool.workers["a"].is_ejected
    assert not pool.workers["a"].has_credit
    for i in range(10, 14):
        assert places(pool.submit(task(i), 1.1)) == [(i, "b")]
    assert places(pool.submit(task(14), 1.2)) == []
    assert places(pool.expire(1.5)) == []
    assert places(pool.expire(2.1)) == [(14, "a")]
    assert places(pool.submit(task(15), 2.2)) == []
    assert places(pool.expire(2.3)) == []  # one at a time


def test_the_pause_between_probes_doubles_and_three_good_ones_end_it() -> None:
    pool = dispatcher("a", "b", n_slots=1)
    fail(pool, "a", 0, 5)
    pool.submit(task(10), 1.0)  # b is busy with it
    now, pauses = 1.0, []
    for i in range(20, 23):
        pauses.append(wait_for_probe(pool, i, now))
        now += pauses[-1]
        pool.ended("a", broken(i), now)
    assert pauses == [1.0, 2.0, 4.0]
    for i in range(30, 33):
        now += wait_for_probe(pool, i, now)
        assert pool.workers["a"].is_ejected
        pool.ended("a", done(i), now)
    assert not pool.workers["a"].is_ejected
    assert pool.workers["a"].has_credit


def wait_for_probe(pool: Dispatcher, task_id: int, start: float) -> float:
    """Submit a task for the ejected worker; return when it gets it, in steps of a quarter."""
    pool.submit(task(task_id, worker="a"), start)
    for i in range(39):
        pool.expire(start + i / 4)
        if pool.workers["a"].tasks:
            return i / 4
    raise AssertionError("no probe came")


def test_an_ejection_says_why() -> None:
    pool = dispatcher("a", "b", n_slots=2)
    fail(pool, "a", 0, 4)
    pool.submit(task(4, worker="a"), 1.0)
    ejected = pool.ended("a", broken(4, attempt=pool.tasks[4].attempt), 1.0)
    assert Ejected("a", "5 tasks in a row failed") in ejected


def test_at_most_half_of_the_workers_are_ejected() -> None:
    pool = dispatcher("a", "b", "c", n_slots=2)
    for i, name in enumerate("abc"):
        fail(pool, name, 10 * i, 8)
    assert [worker.is_ejected for worker in pool.workers.values()] == [True, False, False]
    alone = dispatcher("a")
    fail(alone, "a", 0, 8)
    assert not alone.workers["a"].is_ejected


def test_ejected_workers_are_let_in_where_others_are_lost() -> None:
    pool = dispatcher("a", "b", n_slots=2)
    fail(pool, "a", 0, 5)
    pool.submit(task(10), 2.0)
    assert places(pool.worker_lost("b", 2.0)) == [(10, "a")]
    assert not pool.workers["a"].is_ejected


def test_one_success_clears_the_failures_before_it() -> None:
    pool = dispatcher("a", "b", n_slots=2)
    for i in range(4):
        fail(pool, "a", 10 * i, 4)
        pool.submit(task(10 * i + 9, worker="a"), 1.0)
        pool.ended("a", done(10 * i + 9), 1.0)
    assert not pool.workers["a"].is_ejected


def late(
    pool: Dispatcher,
    worker: str,
    task_id: int,
    now: float,
    wait_s: float,
    *,
    has_media: bool = False,
) -> None:
    """Let a worker take so long for its first token."""
    pool.submit(replace(task(task_id, n_tokens=10), has_media=has_media), now)
    (has,) = [one for one in pool.workers.values() if task_id in one.tasks]
    read_at = now + (wait_s if has.key == worker else 0.01)
    pool.started(has.key, started(task_id, n_prompt=10), now)
    pool.delta_came(has.key, TaskKey(task_id), read_at)
    now_at = pool.tasks[task_id]  # it moves when its worker is ejected
    pool.ended(now_at.worker, done(task_id, attempt=now_at.attempt), read_at)
    pool.ended(has.key, done(task_id), read_at)


def test_a_worker_whose_first_tokens_come_far_too_late_is_ejected() -> None:
    pool = dispatcher("a", "b")
    for i in range(20):
        late(pool, "a", i, 10.0 * i, wait_s=5.0)
    assert pool.workers["a"].is_ejected
    well = dispatcher("a", "b")
    for i in range(20):
        late(well, "a", i, 10.0 * i, wait_s=0.9)
    assert not well.workers["a"].is_ejected


def test_images_that_take_long_eject_no_worker() -> None:
    pool = dispatcher("a", "b")
    for i in range(20):
        late(pool, "a", i, 10.0 * i, wait_s=5.0, has_media=True)
    assert not pool.workers["a"].is_ejected


def test_the_streams_of_an_ejected_worker_go_on_elsewhere() -> None:
    pool = dispatcher("a", "b", n_slots=8)
    pool.submit(task(1), 0.0)
    worker = pool.tasks[1].worker
    read(pool, worker, 1)
    fail(pool, worker, 10, 5)
    assert pool.tasks[1].worker != worker
    assert (pool.workers[worker].n_taken, list(pool.workers[worker].abandoned)) == (
        1,
        [TaskKey(1)],
    )
    pool.ended(worker, done(1), 2.0)
    assert pool.workers[worker].n_taken == 0


def test_nothing_is_kept_of_a_lost_worker() -> None:
    pool = dispatcher("a", "b")
    fail(pool, "a", 0, 3)
    pool.worker_lost("a", 2.0)
    assert isinstance(pool.outliers, OutlierDetection)
    assert repr(pool.outliers) == "<OutlierDetection records=0>"
