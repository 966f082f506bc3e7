"""B6: whoever dials the workers' port over tcp without the right keys, or says nothing at all."""

import asyncio
import contextlib
import re
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

from gateway.soak.pool import eventually
from gateway.soak.scene import Scene
from tests.faults.case import FaultCase
from tests.faults.groups.network import FAR_TCP

_N_PEERS = 20
"""Dealers of each kind."""
_N_NOISE = 100
_N_SILENT = 10_000
_N_AT_ONCE = 500
"""Connections made before the gateway gets time to accept them."""
_MAX_MIB = 60.0
"""libzmq takes 4 KiB for each connection that is open at once, and keeps them for the next."""
_HTTP = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
_FAILED = "llamapool_failed_handshakes_total"

Prepare = Callable[["zmq.Socket[bytes]"], None]


def _curve(socket: "zmq.Socket[bytes]", server: bytes) -> None:
    public, secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_SERVERKEY, server)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)


async def strangers_at_the_door(scene: Scene) -> None:
    """Dial with keys that nobody knows, with none, as HTTP, with noise, and without a word."""
    port = port_of(scene)
    server = re.search(r'"(.{40})"', (scene.pool.folder / "keys" / "gateway.pub").read_text())
    assert server is not None
    real, wrong = server[1].encode(), zmq.curve_keypair()[0]
    since, name = len(scene.pool.lines), scene.pool.gateways[0]
    before_mib = scene.pool.resident_mib()[name]
    kinds: list[Prepare] = [
        lambda one: _curve(one, real),
        lambda one: _curve(one, wrong),
        lambda one: None,
    ]
    with contextlib.ExitStack() as stack:
        for prepare in kinds:
            stack.enter_context(_dealers(port, prepare))
        await _noise(scene, port)
        await scene.load.answers(8)
        with raised_limit(2 * _N_SILENT):
            await _silence(scene, port)
    n_failed = await scene.pool.metric(_FAILED)
    n_min = 2 * _N_PEERS + _N_NOISE + _N_SILENT
    scene.expect(n_failed >= n_min, f"{n_failed:.0f} of {n_min} handshakes failed")
    grown_mib = scene.pool.resident_mib()[name] - before_mib
    scene.expect(grown_mib < _MAX_MIB, f"the gateway grew by {grown_mib:.0f} MiB")
    n_lines = scene.pool.count("handshake failed", since=since)
    scene.expect(n_lines <= 4, f"{n_lines} lines of one peer")
    scene.expect(scene.pool.count("worker (joined|lost)", since=since) == 0, "workers changed")


def port_of(scene: Scene) -> int:
    """Return the port of the workers, from the configuration."""
    found = re.search(
        r"bind = \[.tcp://127\.0\.0\.1:(\d+)", (scene.pool.folder / "pool.toml").read_text()
    )
    assert found is not None
    return int(found[1])


@contextmanager
def _dealers(port: int, prepare: Prepare) -> Iterator[None]:
    """Dial as a worker does, over and over, and say something that must not be heard."""
    with zmq.Context() as context:
        for _ in range(_N_PEERS):
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.RECONNECT_IVL, 500)
            prepare(dealer)
            dealer.connect(f"tcp://127.0.0.1:{port}")
            dealer.send(b"hello")
        try:
            yield
        finally:
            context.destroy(linger=0)


async def _noise(scene: Scene, port: int) -> None:
    for number in range(_N_NOISE + _N_PEERS):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_HTTP if number < _N_PEERS else scene.rng.randbytes(3000))
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()


@contextmanager
def raised_limit(n: int) -> Iterator[None]:
    """Let this process open `n` descriptors, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, n)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _silence(scene: Scene, port: int) -> None:
    """Connect ten thousand times without a word, until the gateway has hung up on all."""
    loop = asyncio.get_running_loop()
    n_before = await scene.pool.metric(_FAILED)
    with contextlib.ExitStack() as stack:
        for number in range(_N_SILENT):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            await loop.sock_connect(one, ("127.0.0.1", port))
            if not number % _N_AT_ONCE:
                await asyncio.sleep(0.05)
        await scene.load.answers(8)

        async def are_cut() -> bool:
            return await scene.pool.metric(_FAILED) >= n_before + _N_SILENT

        scene.expect(await eventually(are_cut, 30), "silent connections stay open")


CASES = [
    FaultCase(
        name="B6",
        what="unknown keys, none, HTTP, noise, 10,000 silent connections at the workers' port",
        inject=strangers_at_the_door,
        pool=FAR_TCP,
    )
]
