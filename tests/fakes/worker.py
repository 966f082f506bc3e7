"""A worker without a model: speaks the wire, echoes its prompt, and misbehaves on order.

`FakeWorker` lives in the test's own event loop. It runs freely, or token by token under `step()`.
As a process: `python -m tests.fakes.worker --connect ipc://… --slots 64 --rate 100`.
"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import zmq
import zmq.asyncio

from protocol.errors import ErrorCode
from protocol.wire import codec, facts
from protocol.wire import messages as m
from tests.envelopes import Payload, payload_of
from tests.fakes.echo import FakeEngine, FakeOptions

_EPOCHS = itertools.count(1)


class Keys(NamedTuple):
    """What a peer needs for CURVE."""

    server: bytes
    public: bytes
    secret: bytes

    def apply(self, socket: "zmq.Socket[Any]") -> None:
        """Set the options of a socket that will dial."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)


class FakeWorker:
    """The socket around a `FakeEngine`, with a lever for every way in which a worker fails."""

    def __init__(
        self, endpoint: str, options: FakeOptions | None = None, keys: Keys | None = None
    ) -> None:
        self.options = options or FakeOptions()
        self.endpoint = endpoint
        self.keys = keys
        self.engine = FakeEngine(self.options)
        self.epoch = next(_EPOCHS)
        self.received: list[Payload] = []
        self.envelopes: list[m.Envelope] = []
        """What came for tasks, with whose it was."""
        self.n_connections = self.n_heartbeats = 0
        self._context = zmq.asyncio.Context(io_threads=1)
        self._socket: zmq.asyncio.Socket | None = None
        self._sent = 0
        self._expected = 0
        self._silent = False
        self.accounts = -1
        """Descriptor of the memory where it says that it counts."""
        self._heartbeat_s = 0.1
        self._changed = asyncio.Event()
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        state = "silent" if self._silent else "gone" if self._socket is None else "up"
        return f"<FakeWorker {self.options.name} {state} busy={self.engine.busy}>"

    async def __aenter__(self) -> "FakeWorker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def start(self) -> None:
        """Connect, say `Hello` and, unless told otherwise, `Ready`."""
        await self._connect()
        self._tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._send_heartbeats()),
        ]
        if self.options.free_running:
            self._tasks.append(asyncio.create_task(self._run()))

    async def _connect(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
        self._sent = self._expected = 0
        self.n_connections += 1
        number = f"{self.options.connection}.{self.n_connections}"
        identity = f"{self.options.name}:{self.epoch}:{number}"
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        if self.keys is not None:
            self.keys.apply(self._socket)
        self._socket.connect(self.endpoint)
        hello = m.Hello(
            worker=self.options.name,
            epoch=self.epoch,
            model=self.options.model,
            wire_version=self.options.wire_version,
            connection=self.options.connection,
            accounts=self.accounts,
        )
        await self.send(hello)
        if self.options.ready:
            await self.ready()

    async def ready(self) -> None:
        """Open the slots."""
        o = self.options
        card = facts.ModelCard(
            name=o.model,
            path=f"/models/{o.model}.gguf",
            fingerprint=o.fingerprint,
            n_slots=o.n_slots,
            n_prefetch=o.n_prefetch,
            n_ctx=o.n_ctx,
            n_ctx_total=o.n_ctx * o.n_slots,
            n_ctx_train=o.n_ctx,
            n_vocab=1000,
            build="b1-fake",
            defaults=o.defaults,
            saves_slots=o.saves_slots,
            n_lora=o.n_lora,
            system_prompt=o.system_prompt,
            has_embeddings=bool(o.pooling),
            pooling=o.pooling,
            n_embd_out=2,
            fim_missing=o.fim_missing,
            aliases=o.aliases,
            media_marker=o.media_marker,
            has_vision=bool(o.media_marker),
            has_audio=o.has_audio,
        )
        await self.send(m.Ready(card=card, is_held=o.is_held))

    async def admit(self) -> None:
        """Be held no more."""
        self.options = dataclasses.replace(self.options, is_held=False)
        await self.send(m.Admitted())

    async def send(self, *messages: m.FrameItem) -> None:
        """Send one frame with the right sequence number."""
        await self.send_raw(codec.encode(self._sent, messages))

    async def send_raw(self, data: bytes) -> None:
        """Send these bytes as a frame; a silent or dead worker sends nothing."""
        if self._socket is None or self._silent:
            return
        self._sent += 1
        await self._socket.send(data)

    async def step(self, n: int = 1) -> list[m.FrameItem]:
        """Run n engine steps and send what they gave."""
        out: list[m.FrameItem] = []
        for _ in range(n):
            messages = self.engine.step()
            out += messages
            if messages:
                await self.send(*messages)
        return out

    def go_silent(self) -> None:
        """Keep the connection but say nothing any more, like a process that is stopped."""
        self._silent = True

    def disconnect(self) -> None:
        """End the connection, as a network does; `reconnect` makes another one."""
        if self._socket is not None:
            self._socket.disconnect(self.endpoint)

    async def reconnect(self) -> None:
        """Come back as the same process under a fresh identity, all tasks forgotten."""
        self.engine.waiting.clear()
        self.engine.running.clear()
        self._silent = False
        await self._connect()
        if asyncio.current_task() is not self._tasks[0]:  # it reads from the socket before
            self._tasks[0].cancel()
            self._tasks[0] = asyncio.create_task(self._read())

    async def leave(self, reason: str = "drained", *, is_failure: bool = False) -> None:
        """Say `Bye`, and nothing after it."""
        await self.send(m.Bye(reason=reason, is_failure=is_failure))
        self.go_silent()

    async def die(self) -> None:
        """Close the socket at once, without a word, and stop."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        self._context.term()

    async def until(self, condition: Callable[["FakeWorker"], bool], limit_s: float = 30.0) -> None:
        """Wait until the condition holds; it is looked at after every message and step."""
        async with asyncio.timeout(limit_s):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def got(self, kind: type[Payload], n: int = 1) -> None:
        """Wait until n messages of this kind have come."""
        await self.until(lambda w: sum(isinstance(one, kind) for one in w.received) >= n)

    async def wait_heartbeats(self, n: int) -> None:
        """Wait until n more heartbeats have left."""
        wanted = self.n_heartbeats + n
        await self.until(lambda w: w.n_heartbeats >= wanted)

    async def _read(self) -> None:
        while self._socket is not None:
            frame = codec.decode(await self._socket.recv())
            if frame.seq != self._expected:
                await self.reconnect()
                continue
            self._expected += 1
            out: list[m.FrameItem] = []
            for message in frame.messages:
                self.received.append(payload_of(message))
                if isinstance(message, m.Envelope):
                    self.envelopes.append(message)
                if isinstance(message, m.Welcome):
                    self._heartbeat_s = message.heartbeat_s
                out += self.engine.take(message)
            if out:
                await self.send(*out)
            self._work.set()
            self._changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not (self.engine.waiting or self.engine.running or self.engine.cancelled):
                self._work.clear()
                await self._work.wait()
                due = loop.time()
            await self.step()
            self._changed.set()
            due = max(due + self.options.step_s, loop.time() - self.options.step_s)
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _send_heartbeats(self) -> None:
        while True:
            await self.send(self.engine.heartbeat())
            self.n_heartbeats += 1
            self._changed.set()
            await asyncio.sleep(self._heartbeat_s)


def failed(code: ErrorCode, message: str) -> m.Failed:
    """Build a failure to hand to `engine.fail_next`."""
    return m.Failed(code=code, message=message)


@click.command()
@click.option("--connect", required=True, help="ZeroMQ endpoint of the gateway.")
@click.option("--name", default="w0")
@click.option("--model", default="fake")
@click.option("--slots", default=8)
@click.option("--rate", default=0.0, help="Engine steps a second; 0 is as fast as it goes.")
@click.option("--count", default=1, help="Number of workers in this process: NAME-0, NAME-1, ...")
def main(  # noqa: PLR0917 - one for each option
    connect: str, name: str, model: str, slots: int, rate: float, count: int
) -> None:
    """Run fake workers until the process is killed."""
    options = FakeOptions(
        name=name, model=model, n_slots=slots, step_s=1 / rate if rate else 0.0, n_prefetch=0
    )
    names = [name] if count == 1 else [f"{name}-{i}" for i in range(count)]

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for one in names:
                worker = FakeWorker(connect, dataclasses.replace(options, name=one))
                await stack.enter_async_context(worker)
            await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
