"""Workers and models that are gone are remembered for a while, and only so many."""

import gc
from collections import deque
from collections.abc import Sized
from types import FunctionType, ModuleType

import pytest

from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.workers.slot_map import ExpectedWorker
from tests.gateway.dispatching import card, dispatcher


def test_a_worker_that_left_for_good_gives_its_slot_ids_back() -> None:
    """Otherwise `id_slot` leads to workers that are gone, and the queue grows with them."""
    pool = dispatcher("a", "b", "c", n_slots=2)
    pool.slots.expect([ExpectedWorker("c", "m", 2)])
    for name in ("a", "c"):
        pool.worker_lost(name, 0.0)
    assert pool.connected.forget_departed(3599.0) == []
    assert repr(pool.slots) == "<SlotMap a:0-1 b:2-3 c:4-5>"
    assert pool.connected.forget_departed(3600.0) == ["a", "c"]
    assert repr(pool.slots) == "<SlotMap b:0-1 c:2-3>"  # c is configured here: it will come back
    assert pool.connected.forget_departed(9999.0) == []


def test_a_worker_that_came_back_is_kept() -> None:
    pool = dispatcher("a", "b")
    pool.worker_lost("a", 0.0)
    pool.worker_hello("a2", "a", "m")
    pool.worker_lost("b", 0.0)
    pool.worker_hello("b2", "b", "m")
    pool.worker_hello("b3", "b", "m")
    pool.worker_lost("b2", 1.0)  # another connection of its name is left
    assert pool.connected.forget_departed(9999.0) == []
    assert repr(pool.slots) == "<SlotMap a:0-0 b:1-1>"


@pytest.mark.slow
def test_names_that_never_come_again_are_not_kept_without_end() -> None:
    """What is remembered by a name or a model has a bound, whoever connects how often."""
    pool, n = dispatcher(), 1100
    for i in range(n):
        pool.worker_hello(f"k{i}", f"w{i}", f"m{i}")
        pool.worker_ready(f"k{i}", card(name=f"m{i}"), 0.0)
        pool.worker_lost(f"k{i}", float(i) / n, died=False)
        pool.connected.forget_departed(float(i) / n)
    assert largest(pool) <= 1024
    assert set(pool.queue.depths()) == set(pool.cards) == {f"m{i}" for i in range(n - 256, n)}


def largest(pool: Dispatcher) -> int:
    """Return the number of entries of the largest container that a dispatcher reaches."""
    seen: dict[int, object] = {}
    waiting: list[object] = [pool]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen[id(one)] = one
        if isinstance(one, Sized) or type(one).__module__.startswith("gateway."):
            waiting += gc.get_referents(one)
    kinds = (dict, list, set, deque)
    return max(len(one) for one in seen.values() if isinstance(one, kinds))
