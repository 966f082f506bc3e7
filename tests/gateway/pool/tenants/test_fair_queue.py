"""The fair queue: bounded memory, and a forgotten tenant gains nothing."""

import pytest

from gateway.pool.tenants import fair_queue
from gateway.pool.tenants.fair_queue import FairQueue


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "MAX_IDLE", 8)


def serve_next(queue: FairQueue) -> int:
    """Take the task whose turn it is."""
    task_id = next(queue.candidates(lambda _: False))
    queue.serve(next(one for one in queue.shares() if queue.newest(one) == task_id), task_id)
    return task_id


def test_idle_tenants_are_forgotten_the_longest_unused_first() -> None:
    queue = FairQueue()
    for i in range(100):
        queue.push(f"t{i}", i)
        serve_next(queue)
        queue.charge(f"t{i}", 10**9)
    assert len(queue._idle) == 8


def test_charges_of_strangers_are_bounded_too() -> None:
    queue = FairQueue()
    for i in range(100):
        queue.charge(f"t{i}", 1)
    assert len(queue._idle) == 8


def test_a_waiting_tenant_keeps_its_debt_whoever_comes_by() -> None:
    queue = FairQueue()
    queue.charge("debtor", 1000)
    queue.push("debtor", 1)
    for i in range(2, 100):
        queue.push(f"t{i}", i)
        queue.remove(f"t{i}", i)
    queue.push("other", 100)
    queue.charge("debtor", 1)
    assert serve_next(queue) == 100


def test_a_forgotten_tenant_starts_at_the_level_of_those_who_wait() -> None:
    queue = FairQueue()
    queue.push("steady", 1)
    queue.charge("steady", 500)
    queue.push("new", 2)
    queue.charge("new", 1)
    assert serve_next(queue) == 1
