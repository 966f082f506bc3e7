"""The supervisor's end of the control channel, with fake workers for processes."""

import asyncio
from pathlib import Path

from protocol.process.control import (
    Line,
    Listed,
    ModelInfo,
    Order,
    Phase,
    Subscribe,
    Verb,
    WorkerReport,
    decode,
    encode,
)
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker


class FakeSupervisor:
    """Does what the gateway orders, unless told to hold it or to let it fail."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.path = str(folder / "control.sock")
        self._endpoint = f"ipc://{folder}/w.sock"
        self.models = [ModelInfo(name=name, args=("llamapool", "worker")) for name in names]
        self.error = ""
        self.failing: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}
        """Models that load only once this is set."""
        self.orders: list[str] = []
        self.workers: dict[str, FakeWorker] = {}
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "FakeSupervisor":
        self._server = await asyncio.start_unix_server(self._converse, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for worker in self.workers.values():
            await worker.die()
        self.hang_up()
        assert self._server is not None
        self._server.close()

    def hang_up(self) -> None:
        """Break the connections."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def send(self, line: Line) -> None:
        """Send a line, whether it fits or not; the connection of admins ignores it."""
        assert self._writers
        for writer in self._writers:
            writer.write(encode(line))

    def report(self, model: str, phase: Phase, exit_code: int = 0, why: str = "") -> None:
        """Report a model's only worker."""
        worker = f"{model}-1"
        self.send(
            WorkerReport(model=model, worker=worker, phase=phase, exit_code=exit_code, why=why)
        )

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        workers = tuple(
            WorkerReport(model=name, worker=f"{name}-1", phase=Phase.READY) for name in self.workers
        )
        greeting = Listed(models=tuple(self.models), is_greeting=True, workers=workers)
        writer.write(encode(greeting))
        while data := await reader.readline():
            order = decode(data)
            if isinstance(order, Subscribe):
                continue
            assert isinstance(order, Order)
            self.orders.append(f"{order.verb} {order.model}".strip())
            task = asyncio.create_task(self._obey(order))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _obey(self, order: Order) -> None:
        if order.verb is Verb.RELOAD:
            self.send(Listed(models=tuple(self.models), error=self.error))
        elif order.verb is Verb.LOAD:
            await self._load(order.model)
        else:
            await self._unload(order.model)

    async def _load(self, model: str) -> None:
        self.report(model, Phase.LOADING)
        if model in self.held:
            await self.held[model].wait()
        if model in self.failing:
            self.report(model, Phase.GONE, 78, "it is broken")
            return
        worker = FakeWorker(self._endpoint, FakeOptions(name=f"{model}-1", model=model))
        self.workers[model] = worker
        await worker.start()
        await worker.got(m.Opened)
        self.report(model, Phase.READY)

    async def _unload(self, model: str) -> None:
        worker = self.workers.pop(model, None)
        if worker is not None:
            await worker.leave()
            await worker.die()
        self.report(model, Phase.GONE)
