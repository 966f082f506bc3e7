"""A pool that is open over tcp, and workers with keys of their own."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import zmq

from gateway.metrics.metrics import Metrics
from gateway.pool.pool import Pool
from protocol.config.config import GatewayConfig
from protocol.curve import public_text, secret_text
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker, Keys
from tests.gateway.rig import Rig, text_of


def free_port(host: str = "127.0.0.1") -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


class RingingMetrics(Metrics):
    """Wakes a waiting test at every failed handshake: most of them leave no log line."""

    def __init__(self, rung: asyncio.Event) -> None:
        super().__init__()
        self._rung = rung

    def handshake_failed(self, kind: str) -> None:
        super().handshake_failed(kind)
        self._rung.set()


class Fleet(Rig):
    """The rig of the pool's tests over tcp; `keys(name)` makes and authorises a worker's key."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", **config: Any) -> None:
        super().__init__(directory)
        self.local = self.endpoint
        self.folder = directory / "workers"
        self.folder.mkdir()
        self.server, secret = zmq.curve_keypair()
        (directory / "gateway.key").write_text(secret_text(secret.decode()))
        (directory / "gateway.key").chmod(0o600)
        self.port = free_port(host)
        self.endpoint = (
            f"tcp://[{host}]:{self.port}" if ":" in host else f"tcp://{host}:{self.port}"
        )
        self.metrics = RingingMetrics(self.waiter.rung)
        self.pool = Pool(
            GatewayConfig(
                bind=(self.local, self.endpoint),
                curve_key_file=str(directory / "gateway.key"),
                worker_keys=str(self.folder),
                **{"heartbeat_s": 0.1} | config,
            ),
            self.metrics,
        )

    async def __aenter__(self) -> "Fleet":
        await super().__aenter__()
        return self

    def keys(self, name: str, *workers: str) -> Keys:
        """Make a pair, and authorise it."""
        keys = self.strange_keys()
        self.authorise(name, keys, *workers)
        return keys

    def authorise(self, name: str, keys: Keys, *workers: str) -> None:
        """Write the public file of a key, at once as a whole."""
        path = self.folder / f"{name}.new"
        path.write_text(public_text(keys.public.decode(), workers))
        path.rename(self.folder / f"{name}.pub")

    def revoke(self, name: str) -> None:
        """Take the public file of a key away."""
        (self.folder / f"{name}.pub").unlink()

    def strange_keys(self) -> Keys:
        """Make a pair that nobody knows."""
        return Keys(self.server, *zmq.curve_keypair())

    @asynccontextmanager
    async def worker(self, keys: Keys | None, name: str = "w0") -> AsyncIterator[FakeWorker]:
        """Run a worker that is dialling."""
        async with FakeWorker(self.endpoint, FakeOptions(name=name), keys) as fake:
            yield fake


async def answers(fleet: Fleet) -> None:
    """Check that the pool serves."""
    assert await text_of(fleet.generate("a b")) == "a b"
