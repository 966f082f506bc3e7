"""Peers with a worker's key whose frames take long to read."""

import pytest

from gateway.pool.network import bad_frames, connections
from gateway.pool.network.bad_frames import BadFrames
from tests.gateway.pool.network.fleet import Fleet, answers

pytestmark = pytest.mark.usefixtures("looks_always")


async def test_a_worker_whose_frames_hold_the_loop_is_blocked(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have a task, so that it may send 256 MiB; a frame of 25 took 2.4 s."""
    monkeypatch.setattr(connections, "_SLOW_S", 0.0)
    monkeypatch.setattr(bad_frames, "MAX_SLOW_S", 0.0)
    async with (
        fleet.worker(fleet.keys("good"), "good"),
        fleet.worker(fleet.keys("bad"), "bad") as bad,
    ):
        await fleet.until(2)
        await bad.send_raw(b"\x92\x01\x91\x92\xa4ping\x81\xa1a\xdc\x50\x00" + bytes(0x5000))
        await fleet.logged("peer blocked identity=bad.pub")
        await fleet.logged("worker lost worker=bad")
        await answers(fleet)


def test_slow_frames_may_take_a_part_of_the_time() -> None:
    frames = BadFrames()
    for second in range(60):
        assert not frames.count_slow("echo", 0.5, 2.0 * second)
        assert not frames.count_slow("once", 4.5, 100.0 * second)
    assert [frames.count_slow("thief", 1.0, 200.0 + second) for second in range(7)] == [
        *[False] * 6,
        True,
    ]
    assert frames.is_blocked("thief", 207.0)
    assert not frames.is_blocked("echo", 207.0)
