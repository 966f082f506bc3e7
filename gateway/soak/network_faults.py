"""Faults of the network between the gateway and the worker behind a gate."""

import asyncio

from gateway.soak.gate import LinkConditions, TcpGate
from gateway.soak.scene import Scene


def gate_of(scene: Scene) -> TcpGate:
    """Return the gate of a pool that has one."""
    assert scene.gate is not None
    return scene.gate


async def rejoined(scene: Scene, since: int) -> None:
    """Wait until the worker behind the gate serves again."""
    await scene.pool.wait_for(r"worker ready worker=(\S+/)?far ", 20, since=since)


async def down_for_long(scene: Scene, name: str) -> None:
    """Stop the link until the worker is given up, and for five seconds more."""
    since, gate = len(scene.pool.lines), gate_of(scene)
    gate.stall()
    await scene.pool.wait_for(rf"worker lost worker=(\S+/)?{name} ", 8, since=since)
    await asyncio.sleep(5.0)
    gate.resume()
    await rejoined(scene, since)


async def down_for_a_moment(scene: Scene, name: str) -> None:
    """Stop the link for a second: the worker must not be given up."""
    since, gate = len(scene.pool.lines), gate_of(scene)
    gate.stall()
    await asyncio.sleep(1.0)
    gate.resume()
    await scene.load.pieces(100)
    n_lost = scene.pool.count(rf"worker lost worker=(\S+/)?{name} ", since=since)
    scene.expect(n_lost == 0, "it was given up")


async def one_reset(scene: Scene, name: str) -> None:
    """End the connection; the worker joins again."""
    since = len(scene.pool.lines)
    gate_of(scene).reset()
    await rejoined(scene, since)


async def slow_line(scene: Scene, name: str) -> None:
    """Delay every byte by a tenth of a second, for some answers."""
    gate_of(scene).conditions = LinkConditions(latency_s=0.1, slice_bytes=64)
    await scene.load.answers(4)
    gate_of(scene).conditions = LinkConditions()
