"""A worker that connects again has not died, and no request is refused for it."""

from pathlib import Path

from gateway.pool.recovery.quarantine import HELD_S
from protocol.errors import ErrorCode
from protocol.wire import messages as m
from tests.gateway.dispatching import card, dispatcher, failures, places, task
from tests.gateway.rig import SLOW, Rig, text_of


def test_a_connection_that_breaks_twice_leaves_no_suspect() -> None:
    pool = dispatcher("a:1")
    pool.submit(task(1), 0.0)
    for n in (1, 2):
        assert pool.worker_lost(f"a:{n}", float(n)) == []
        pool.quarantine.survived(f"a:{n}")
        pool.worker_hello(f"a:{n + 1}", "a", "m")
        assert places(pool.worker_ready(f"a:{n + 1}", card(), n + 0.5)) == [(1, f"a:{n + 1}")]
    assert pool.expire(2.0 + HELD_S) == []


def test_only_the_deaths_of_that_worker_are_taken_back() -> None:
    pool = dispatcher("a", "b", "c", "d")
    pool.submit(task(1), 0.0)
    for n, name in enumerate("abc"):
        pool.worker_lost(name, float(n))
        if name == "a":
            pool.quarantine.survived("a")
    assert failures(pool.expire(2.0 + HELD_S)) == {1: ErrorCode.QUARANTINED}


async def test_a_task_whose_worker_loses_its_connection_again_and_again_is_answered(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig, rig.workers(SLOW) as (fake,):
        stream = rig.generate("a b")
        for n in range(1, 4):
            await fake.got(m.Generate, n)
            fake.disconnect()
            await rig.until(0)
            await fake.reconnect()
        await fake.got(m.Generate, 4)
        await fake.step(4)
        assert await text_of(stream) == "a b"
        assert sum("its connection has ended" in line for line in rig.waiter.lines) == 3
