"""A whole gateway in the test's own loop: real Hypercorn on loopback, fake workers over ipc."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.app import build_app
from gateway.feed.feed import PoolFeed
from gateway.http.http_server import HttpServer
from gateway.metrics.metrics import Metrics
from gateway.models.manager import ModelManager
from gateway.parts import parts_of
from gateway.pool.pool import Pool
from gateway.replay.keeping import StreamKeeper
from gateway.server import server_config
from gateway.siblings.siblings import Siblings
from protocol.config.config import GatewayConfig
from protocol.process.listening import listen, url_of
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker

LIMIT_S = 30.0


@dataclass(slots=True, kw_only=True)
class Running:
    """The gateway, its workers, and a client of it."""

    url: str
    pool: Pool
    metrics: Metrics
    endpoint: str
    client: httpx.AsyncClient
    server: HttpServer
    feed: PoolFeed
    siblings: Siblings
    keeper: StreamKeeper
    models: ModelManager | None = None
    workers: list[FakeWorker] = field(default_factory=list)

    async def add_worker(self, options: FakeOptions | None = None) -> FakeWorker:
        """Start one more worker and wait until the pool has it, if it says that it is ready."""
        worker = FakeWorker(self.endpoint, options)
        self.workers.append(worker)
        n_before = self.pool.health().n_workers
        await worker.start()
        if worker.options.ready:
            await until(lambda: self.pool.health().n_workers > n_before)
        return worker

    async def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        """POST a JSON body."""
        return await self.client.post(path, json=body, **kwargs)

    async def events(self, path: str, body: Any) -> list[str]:
        """POST and return the lines of the stream, comments and blanks left out."""
        response = await self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream"
        return [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]

    async def idle(self) -> None:
        """Wait until no task is left in the pool."""
        async with asyncio.timeout(LIMIT_S):
            await self.pool.transport.streams.drained()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other tasks of this loop make true."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - the pool announces none of these
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Running]:
    """Serve with these settings, without workers."""
    endpoint = f"ipc://{folder}/w.sock"
    config = GatewayConfig(**{"port": 0, "bind": (endpoint,), **settings})
    socks = listen(config)
    url = url_of(socks[0], config)
    metrics = Metrics()
    parts = parts_of(config, metrics)
    app = build_app(config, parts, metrics)
    await parts.start()
    server = HttpServer(app, server_config(config, metrics.connections), socks)
    await server.start()
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
        one = Running(
            url=url,
            pool=parts.pool,
            metrics=metrics,
            endpoint=endpoint,
            client=client,
            models=parts.models,
            server=server,
            feed=parts.feed,
            siblings=parts.siblings,
            keeper=parts.keeper,
        )
        try:
            yield one
        finally:
            for worker in one.workers:
                await worker.die()
            await parts.close()
            await client.aclose()
            await server.close(grace_s=0.2)
            await parts.settle()
