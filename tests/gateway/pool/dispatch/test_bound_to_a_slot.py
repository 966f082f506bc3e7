"""Tasks that must have one slot of one worker, beside others that take any."""

from dataclasses import replace

from tests.gateway.dispatching import call, dispatcher, done, places, started, task

N_SLOTS = 4


def test_a_task_that_needs_one_slot_is_not_passed_over_while_others_keep_coming() -> None:
    pool = dispatcher("a", n_slots=N_SLOTS, n_prefetch=1, queue_size=100)
    for i in range(N_SLOTS):
        pool.submit(task(i), 0.0)
        pool.started("a", started(i, slot=i), 0.0)
    for i in range(N_SLOTS, 20):
        pool.submit(task(i), 0.0)
    pool.submit(task(100, worker="a", slot=2), 0.0)
    sent = []
    for i in range(20):
        sent += places(pool.ended("a", done(i), 1.0 + i))
        if (100, "a") in sent:
            break
        pool.submit(task(200 + i), 1.0 + i)
    assert sent[-1] == (100, "a")
    assert len(sent) <= 17  # those that came before it


def test_one_task_waits_in_the_worker_for_a_busy_slot() -> None:
    pool = dispatcher("a", n_slots=N_SLOTS, n_prefetch=2)
    for i in range(N_SLOTS):
        pool.submit(task(i), 0.0)
        pool.started("a", started(i, slot=i), 0.0)
    assert places(pool.submit(task(100, worker="a", slot=2), 0.0)) == [(100, "a")]
    assert pool.workers["a"].slots == {i: i for i in range(N_SLOTS)}
    assert places(pool.submit(task(101, worker="a", slot=3), 0.0)) == []
    assert places(pool.submit(task(102), 0.0)) == [(102, "a")]
    assert places(pool.ended("a", done(2), 1.0)) == []
    assert pool.workers["a"].slots[2] == 100
    pool.started("a", started(100, slot=2), 1.0)
    assert places(pool.ended("a", done(0), 2.0)) == [(101, "a")]


def test_a_task_that_needs_a_busy_slot_waits_while_another_is_free() -> None:
    pool = dispatcher("a", n_slots=N_SLOTS, n_prefetch=1)
    pool.submit(task(1, worker="a", slot=2), 0.0)
    assert places(pool.submit(task(2, worker="a", slot=2), 0.0)) == []
    assert places(pool.submit(task(3, worker="a", slot=1), 0.0)) == [(3, "a")]
    assert places(pool.ended("a", done(1), 1.0)) == [(2, "a")]


def test_a_task_that_waits_for_a_busy_slot_keeps_no_other_from_a_free_one() -> None:
    pool = dispatcher("a", n_slots=N_SLOTS, n_prefetch=1)
    for i in range(N_SLOTS):
        pool.submit(task(i), 0.0)
        pool.started("a", started(i, slot=i), 0.0)
    assert places(pool.submit(task(103, worker="a", slot=3), 0.0)) == [(103, "a")]
    assert places(pool.submit(task(102, worker="a", slot=2), 0.0)) == []
    assert places(pool.submit(task(200), 0.0)) == []
    assert places(pool.ended("a", done(2), 1.0)) == [(102, "a")]


def test_an_action_on_a_slot_keeps_no_task_from_waiting_for_one() -> None:
    pool = dispatcher("a", n_slots=1, n_prefetch=1)
    pool.submit(task(1), 0.0)
    pool.started("a", started(1), 0.0)
    pool.submit(replace(call(2, worker="a"), slot=0, is_bound=True), 0.0)
    assert places(pool.submit(task(3, worker="a", slot=0), 0.0)) == [(3, "a")]


def test_a_worker_that_leaves_with_another_model_frees_the_tasks_of_its_old_slots() -> None:
    pool = dispatcher("a", "b", n_slots=1)
    pool.worker_lost("a", 0.0, died=False)
    pool.worker_hello("a2", "a", "other")
    assert places(pool.submit(task(1, worker="a", slot=0), 0.0)) == []
    assert places(pool.worker_leaves("a2", 0.0)) == [(1, "b")]
