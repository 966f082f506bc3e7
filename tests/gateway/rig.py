"""A pool on a real socket, with fake workers, for the tests of the pool."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.metrics.metrics import Metrics
from gateway.pool.pool import Pool
from gateway.pool.tasks.stream import TaskStream
from protocol.config.config import GatewayConfig
from protocol.process.logs import event_text
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker

SLOW = FakeOptions(free_running=False)


class Bell(logging.Handler):
    """Wakes waiting tests at every log line: whatever they wait for is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.rung = asyncio.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(event_text(record))
        self.rung.set()


class Rig:
    """A pool, its metrics, and the endpoint for fake workers."""

    def __init__(self, directory: Path, **config: float) -> None:
        self.waiter = Bell()
        self.endpoint = f"ipc://{directory}/workers.sock"
        self.metrics = Metrics()
        self.pool = Pool(
            GatewayConfig(bind=(self.endpoint,), **config),  # type: ignore[arg-type]  # a test's choice
            self.metrics,
        )

    @asynccontextmanager
    async def workers(self, *options: FakeOptions) -> AsyncIterator[list[FakeWorker]]:
        """Run these workers, ready and known to the pool."""
        fakes = [FakeWorker(self.endpoint, one) for one in options]
        try:
            for fake in fakes:
                await fake.start()
            await self.until(len([one for one in options if one.ready]))
            yield fakes
        finally:
            for fake in fakes:
                await fake.die()

    async def __aenter__(self) -> "Rig":
        log = logging.getLogger("gateway")
        log.addHandler(self.waiter)
        log.setLevel(logging.INFO)
        await self.pool.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()
        logging.getLogger("gateway").removeHandler(self.waiter)

    async def until(self, n_workers: int) -> None:
        """Wait until so many workers take tasks."""
        await self.holds(lambda: self.pool.health().n_workers == n_workers)

    async def logged(self, text: str) -> None:
        """Wait until the gateway has logged this."""
        await self.holds(lambda: any(text in line for line in self.waiter.lines))

    async def holds(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at after every log line."""
        async with asyncio.timeout(10):
            while not condition():
                self.waiter.rung.clear()
                await self.waiter.rung.wait()

    def generate(self, prompt: str = "one two three", **params: object) -> TaskStream:
        return self.pool.submit(
            m.Generate(prompt=prompt, params=SamplingParams(**params)),  # type: ignore[arg-type]  # a test's choice
            model="fake",
        )


@asynccontextmanager
async def one_more(rig: Rig, name: str) -> AsyncIterator[FakeWorker]:
    """Run one more worker beside those there are."""
    n = rig.pool.health().n_workers
    async with FakeWorker(rig.endpoint, FakeOptions(name=name)) as fake:
        await rig.until(n + 1)
        yield fake


async def text_of(stream: TaskStream) -> str:
    """Read a stream to its end."""
    text = ""
    while True:
        message = await stream.receive()
        if isinstance(message, m.Delta):
            text += message.text
        if isinstance(message, m.Terminal):
            return text


async def reach(stream: TaskStream, kind: type[m.TaskMessage]) -> m.TaskMessage:
    """Read a stream up to a message of this kind."""
    while True:
        message = await stream.receive()
        if isinstance(message, kind):
            return message


async def started_stream(
    rig: Rig, fake: FakeWorker, prompt: str, n: int, **params: object
) -> TaskStream:
    """Submit a task and write n tokens of its answer, one after the other."""
    stream = rig.generate(prompt, **params)
    await fake.got(m.Generate)
    for _ in range(n):
        await fake.step()
        assert isinstance(await reach(stream, m.Delta), m.Delta)
    return stream
