"""A relay between two sockets that does to connections what networks do: cut, stall, delay.

It belongs to one event loop. Both sides may be TCP or Unix sockets.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

_CHUNK = 1 << 16
"""Bytes read at once."""
_QUEUED = 64
"""Chunks that may be under way in one direction before the sender is held up."""


@dataclass(frozen=True, slots=True)
class GateAddress:
    """A TCP address, or with `path` that of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 0
    path: str = ""


@dataclass(slots=True)
class LinkConditions:
    """How bytes travel, in both directions; changes count from the next chunk on."""

    latency_s: float = 0.0
    """Time that each chunk is under way."""
    slice_bytes: int = 0
    """Largest piece that is written at once; 0 is as it came."""


class TcpGate:
    """Listens, and relays every connection to `target`."""

    def __init__(self, target: GateAddress, listen: GateAddress | None = None) -> None:
        self.conditions = LinkConditions()
        self.transform: Callable[[bytes], bytes] = bytes
        """Changes each chunk that passes, in either direction."""
        self._target = target
        self._address = listen or GateAddress()
        self._server: asyncio.Server | None = None
        self._links: set[_GatedConnection] = set()
        self._accepting: set[asyncio.Task[None]] = set()
        self._goes = asyncio.Event()
        self._goes.set()
        self._is_closed = False

    async def open(self) -> GateAddress:
        """Listen; return the address, with the port that was chosen."""
        if self._address.path:
            self._server = await asyncio.start_unix_server(self._accept, self._address.path)
        else:
            host, port = self._address.host, self._address.port
            self._server = await asyncio.start_server(self._accept, host, port)
            port = self._server.sockets[0].getsockname()[1]
            self._address = GateAddress(host, port)
        return self._address

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        if self._server is not None:
            self._server.close()
        self.resume()
        self._is_closed = True
        self.cut()
        await asyncio.gather(*self._accepting, return_exceptions=True)

    def stall(self) -> None:
        """Stop relaying and close nothing, as a link that is down; nothing is lost."""
        self._goes.clear()

    def resume(self) -> None:
        """Relay again, what waited first."""
        self._goes.set()

    def cut(self) -> None:
        """Close all connections with FIN."""
        for link in list(self._links):
            link.cut()

    def reset(self) -> None:
        """End all connections with RST (Unix sockets know none: they are closed)."""
        for link in list(self._links):
            link.linger_zero()
        self.cut()

    async def opened(self) -> None:
        """Wait while the gate is stalled."""
        await self._goes.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        await self.opened()
        near = _End(reader, writer)
        try:
            if self._is_closed:
                raise ConnectionRefusedError
            far = await self._dial()
        except OSError:
            near.close()
            return
        await self._relay(_GatedConnection(self, near, far))

    async def _relay(self, link: "_GatedConnection") -> None:
        self._links.add(link)
        try:
            await link.relay()
        finally:
            self._links.discard(link)

    async def _dial(self) -> "_End":
        if self._target.path:
            return _End(*await asyncio.open_unix_connection(self._target.path))
        return _End(*await asyncio.open_connection(self._target.host, self._target.port))


@dataclass(slots=True)
class _End:
    """One side of a link."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        self.writer.transport.abort()

    def linger_zero(self) -> None:
        """Make the next close send an RST."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        if raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class _GatedConnection:
    """One connection through a gate."""

    def __init__(self, gate: TcpGate, near: _End, far: _End) -> None:
        self._gate = gate
        self._ends = near, far
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def relay(self) -> None:
        """Carry bytes both ways until one side has closed or the gate cuts the link."""
        near, far = self._ends
        queues = [asyncio.Queue[tuple[float, bytes]](_QUEUED) for _ in range(2)]
        pairs = ((near, far, queues[0]), (far, near, queues[1]))
        for source, sink, queue in pairs:
            self._tasks += [
                asyncio.create_task(self._read(source, queue)),
                asyncio.create_task(self._write(queue, sink)),
            ]
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait([*self._tasks, over], return_when=asyncio.FIRST_COMPLETED)
        for task in (*self._tasks, over):
            task.cancel()
        await asyncio.gather(*self._tasks, over, return_exceptions=True)
        for end in self._ends:
            end.close()
        self._over.set()

    def cut(self) -> None:
        self._over.set()

    def linger_zero(self) -> None:
        for end in self._ends:
            end.linger_zero()

    async def _read(self, source: _End, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await source.reader.read(_CHUNK):
                await self._gate.opened()
                passed = self._gate.transform(data)
                await queue.put((loop.time() + self._gate.conditions.latency_s, passed))
        await queue.put((loop.time() + self._gate.conditions.latency_s, b""))
        await self._over.wait()

    async def _write(self, queue: asyncio.Queue[tuple[float, bytes]], sink: _End) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._gate.opened()
            if not data:
                return
            size = self._gate.conditions.slice_bytes or len(data)
            for start in range(0, len(data), size):
                sink.writer.write(data[start : start + size])
                await sink.writer.drain()
