"""No decision looks at every worker, and the cost of one does not grow with those who wait."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.block_hashes import fingerprint
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tenants.slot_shares import SlotShares
from gateway.pool.workers.worker import Worker
from protocol.errors import TaskError
from protocol.wire.messages import Generate, Heartbeat
from protocol.wire.sampling import SamplingParams
from tests.counted import lines_of
from tests.gateway.dispatching import dispatcher, done, places, started, task

N_WORKERS = 200
FEW = 40


@contextmanager
def touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Collect the keys of the workers of which anything is read."""
    seen: set[str] = set()
    plain = object.__getattribute__

    def read(worker: Worker, name: str) -> object:
        seen.add(plain(worker, "key"))
        return plain(worker, name)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "__getattribute__", read)
        yield seen


def asking(task_id: int, system: int, own: int) -> TaskSpec:
    """A task with a prompt of its own after one of a few system prompts."""
    text = f"system {system} " * 100 + f"own {own} " * 100
    prefix = fingerprint(Generate(prompt=text, params=SamplingParams()), "m")
    return replace(task(task_id, tenant=f"t{own % 7}"), prefix=prefix)


@pytest.fixture
def pool() -> Dispatcher:
    """A pool whose workers hold prompts and have a task each, in two slots."""
    one = dispatcher(*(f"w{i}" for i in range(N_WORKERS)), n_slots=2, queue_size=8)
    for i in range(N_WORKERS):
        one.submit(asking(i, i % 3, i), 0.0)
    return one


def test_a_task_is_placed_and_ended_by_a_look_at_a_few(
    pool: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Random(1)
    for i in range(40):
        first = next(iter(pool.tasks.values()))
        own = draw.randrange(N_WORKERS)
        spec = asking(1000 + i, own % 3, own)
        with touched(monkeypatch) as seen:
            (placed,) = places(pool.submit(spec, 1.0))
            pool.ended(first.worker, done(first.task_id), 2.0)
        assert placed[0] == 1000 + i
        assert 0 < len(seen) <= FEW


def test_a_refusal_looks_at_no_worker(pool: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = itertools.count(1000)
    while len(pool.queue) < 8:
        pool.submit(task(next(ids)), 1.0)
    with touched(monkeypatch) as seen, pytest.raises(TaskError) as caught:
        pool.submit(task(5000), 1.0)
    assert caught.value.detail["retry_after_s"] >= 1
    assert len(seen) <= 2


def test_who_asks_other_gateways_for_credits_looks_at_a_few(
    pool: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in pool.workers:
        heartbeat = Heartbeat(step=1, busy=0, granted=-1, is_shared=True)
        pool.worker_shares(key, heartbeat, 1.0)
    assert places(pool.submit(task(1000), 2.0)) == []
    with touched(monkeypatch) as seen:
        asked = pool.demand.crossed(2.0)
    assert len(asked) == 16
    assert len(seen) <= FEW


def test_the_demand_of_a_worker_is_counted_by_slots() -> None:
    """It was counted for each frame to a worker: 8,000 tasks for its busy slot took 1 ms."""
    counted = {}
    for n in (2, 40):
        pool = dispatcher("a", n_slots=4, queue_size=100)
        pool.worker_shares("a", Heartbeat(step=1, busy=0, granted=-4, is_shared=True), 0.0)
        for i in range(n):
            pool.submit(task(i, worker="a", slot=0), float(i))
        worker = pool.workers["a"]
        counted[n] = lines_of(partial(pool.demand.of, worker, 50.0))
        assert worker.demanded == (n, 0.0)
    assert counted[2] == counted[40]


def test_the_time_to_retry_counts_the_slots_that_other_gateways_leave() -> None:
    waits = {}
    for n_others in (0, 3):
        pool = dispatcher("a", n_slots=4, queue_size=1)
        heartbeat = Heartbeat(step=1, busy=0, granted=0, others=n_others, is_shared=True)
        pool.worker_shares("a", heartbeat, 0.0)
        for i in range(30):
            pool.submit(task(i), float(i))
            pool.started("a", started(i), float(i))
            pool.ended("a", done(i), float(i) + 8.0)
        with pytest.raises(TaskError) as caught:
            for i in range(10):
                pool.submit(task(100 + i), 50.0)
        waits[n_others] = caught.value.detail["queue_wait_ms"]
    assert waits[3] == 4 * waits[0]


def test_a_flood_that_is_held_back_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = dispatcher("a", n_slots=8, n_prefetch=0, queue_size=1000)
    pool.submit(task(1, tenant="light"), 0.0)
    for i in range(2, 500):
        pool.submit(task(i, tenant="flood"), 0.0)
    n_free = pool.routing.order.workers_of("m", 0.0).n_free
    assert n_free > 0, "it leaves slots to the one that asks seldom"
    calls = []
    plain = SlotShares.holds_back

    def counted(*args: object) -> bool:
        calls.append(args)
        return plain(*args)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(SlotShares, "holds_back", counted)
    monkeypatch.setattr(pool.placement, "find", lambda *_: pytest.fail("it looked for a place"))
    pool.submit(task(1000, tenant="flood"), 0.0)
    assert len(calls) == 1


def lines_of_events(n_any: int, n_bound: int) -> int:
    """Lines that a submission and an end take while so many tasks wait for any slot, and for one.

    Slot 0 of `a` is busy all the time.
    """
    pool = dispatcher("a", n_slots=2, queue_size=2000)
    pool.submit(task(0, worker="a", slot=0), 0.0)
    pool.started("a", started(0), 0.0)
    pool.submit(task(1, worker="a", slot=1), 0.0)
    pool.started("a", started(1, slot=1), 0.0)
    for i in range(n_any):
        pool.submit(task(100 + i), 0.0)
    for i in range(n_bound):
        pool.submit(task(1000 + i, tenant="t", worker="a", slot=0), 0.0)

    def submit_and_end() -> None:
        pool.submit(task(3000, tenant="t"), 1.0)
        pool.ended("a", done(1), 1.0)

    return lines_of(submit_and_end)


def test_tasks_that_wait_for_one_slot_cost_no_look_at_those_that_wait_for_any() -> None:
    assert lines_of_events(n_any=400, n_bound=1) < 1.2 * lines_of_events(n_any=40, n_bound=1)


def test_of_thousands_that_wait_for_one_slot_few_are_looked_at() -> None:
    pool = dispatcher("a", n_slots=2, queue_size=2000)
    pool.submit(task(0, worker="a", slot=0), 0.0)
    for i in range(400):
        pool.submit(task(1000 + i, worker="a", slot=0), 0.0)
    assert lines_of(lambda: pool.submit(task(3000, worker="a", slot=0), 1.0)) < 600
    pool.ended("a", done(0), 1.0)
    assert pool.tasks[1000].worker == "a"


def test_those_that_need_the_same_slot_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = dispatcher("a", n_slots=3, queue_size=2000)
    pool.submit(task(0, worker="a", slot=0), 0.0)
    pool.started("a", started(0), 0.0)
    for i in range(400):
        pool.submit(task(1000 + i, worker="a", slot=0), 0.0)
    asked: list[int] = []
    plain = Worker.has_place_in

    def has_place_in(worker: Worker, slot: int) -> bool:
        asked.append(slot)
        return plain(worker, slot)

    monkeypatch.setattr(Worker, "has_place_in", has_place_in)
    assert places(pool.submit(task(3000), 1.0)) == [(3000, "a")]
    assert len(asked) <= 4
