"""The supervisor's end of the control channel, with fake workers for processes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from protocol.process.control import (
    DownloadReport,
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
from worker.supervisor.recalls import ModelRecalls


class FakeSupervisor:
    """Does what the gateway orders, unless told to hold it or to let it fail."""

    def __init__(self, folder: Path, *names: str, endpoints: Sequence[str] = ()) -> None:
        """`endpoints` are those of the gateways; of a single one it is in the same folder."""
        self.path = str(folder / "control.sock")
        self._endpoints = endpoints or (f"ipc://{folder}/w.sock",)
        self.models = [ModelInfo(name=name, args=("llamapool", "worker")) for name in names]
        self.error = ""
        self.failing: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}
        """Models that load only once this is set."""
        self.held_unloads: dict[str, asyncio.Event] = {}
        """Models that are gone only once this is set."""
        self.late: dict[str, asyncio.Event] = {}
        """Models that are reported as serving at once, and dial the gateway once this is set."""
        self.held_deletions: dict[str, asyncio.Event] = {}
        """Models whose files are gone only once this is set."""
        self.downloads: tuple[str, ...] = ()
        """Those that run when a gateway connects."""
        self.begins: Line = DownloadReport(model="")
        """What answers an order to download."""
        self.orders: list[str] = []
        self.step_s = 0.0
        """How long a step of its workers takes."""
        self.workers: dict[str, FakeWorker] = {}
        self._more: dict[str, list[FakeWorker]] = {}
        """The same workers at further gateways."""
        self._recalls: ModelRecalls[asyncio.StreamWriter] = ModelRecalls(self)
        self._admins: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "FakeSupervisor":
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for name, worker in self.workers.items():
            for one in (worker, *self._more.pop(name, ())):
                await one.die()
        self.hang_up()

    async def listen(self) -> None:
        """Take connections, at the start and after `hang_up`."""
        self._server = await asyncio.start_unix_server(self._converse, self.path)

    def hang_up(self) -> None:
        """Break the connections and take no others."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    @property
    def gateways(self) -> Sequence[asyncio.StreamWriter]:
        """The connections for models."""
        return [one for one in self._writers if one not in self._admins]

    def answer(self, peer: asyncio.StreamWriter, line: Line) -> None:
        """Send a line to one gateway."""
        peer.write(encode(line))

    def send(self, line: Line) -> None:
        """Send a line, whether it fits or not; the connection of admins ignores it."""
        assert self._writers
        for writer in self._writers:
            writer.write(encode(line))

    def report(self, line: Line) -> None:
        """Tell all gateways; the name that `ModelRecalls` knows."""
        self.send(line)

    def tell(self, model: str, phase: Phase, exit_code: int = 0, why: str = "") -> None:
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
        greeting = Listed(
            models=tuple(self.models), is_greeting=True, workers=workers, downloads=self.downloads
        )
        writer.write(encode(greeting))
        while data := await reader.readline():
            order = decode(data)
            if isinstance(order, Subscribe):
                self._admins.add(writer)
                continue
            assert isinstance(order, Order)
            self.orders.append(f"{order.verb} {order.model}".strip())
            task = asyncio.create_task(self._obey(order, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _obey(self, order: Order, peer: asyncio.StreamWriter) -> None:
        match order.verb:
            case Verb.RELOAD:
                self._list(order)
            case Verb.DOWNLOAD:
                self.send(self.begins)
            case Verb.DELETE:
                if order.model in self.held_deletions:
                    await self.held_deletions[order.model].wait()
                self.models = [one for one in self.models if one.name != order.model]
                self._list(order)
            case Verb.LOAD:
                await self._load(order.model)
            case Verb.UNLOAD if order.if_unused:
                self._recalls.ask(order.model, peer, 0.0)
            case Verb.UNLOAD if self.begins == DownloadReport(model=order.model):
                self.send(DownloadReport(model=order.model, has_ended=True, error="cancelled"))
            case Verb.UNLOAD:
                await self._unload(order.model)
            case _:
                self._recalls.take(order, peer)
        for model in self._recalls.settled(0.0):
            await self._unload(model)

    def _list(self, order: Order) -> None:
        self.send(Listed(models=tuple(self.models), answers=order.id, error=self.error))

    async def _load(self, model: str) -> None:
        self.tell(model, Phase.LOADING)
        if model in self.held:
            await self.held[model].wait()
        if model in self.failing:
            self.tell(model, Phase.GONE, 78, "it is broken")
            return
        options = FakeOptions(name=f"{model}-1", model=model, step_s=self.step_s)
        first, *more = (FakeWorker(one, options) for one in self._endpoints)
        self.workers[model], self._more[model] = first, more
        if model in self.late:
            self.tell(model, Phase.READY)
            await self.late[model].wait()
        for worker in (first, *more):
            await worker.start()
            await worker.got(m.Opened)
        self.tell(model, Phase.READY)

    async def _unload(self, model: str) -> None:
        worker = self.workers.pop(model, None)
        if worker is not None:
            for one in (worker, *self._more.pop(model, ())):
                await one.leave()
                await one.die()
        if model in self.held_unloads:
            await self.held_unloads[model].wait()
        self.tell(model, Phase.GONE)
