"""D12: requests that two servers would read differently, and HTTP/2 as attackers use it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import orjson
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded
from h2.events import StreamReset as StreamWasReset
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes

from gateway.soak.scene import PoolShape, Scene
from tests.faults.case import FaultCase

_N_STREAMS = 100
_N_RESETS = 10_000
_N_MEANWHILE = 50
"""Streams that are opened before the first of them is reset."""
_SILENT_S = 3.0


class _Http2:
    """One connection, as a client that knows HTTP/2 from the start."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.status: dict[int, str] = {}
        self.text: dict[int, bytes] = {}
        self.ended: set[int] = set()

    async def flush(self) -> None:
        """Send what h2 has made."""
        self._writer.write(self.http.data_to_send())
        await self._writer.drain()

    def ask(self, body: dict[str, object]) -> int:
        """Ask for a completion; return its stream."""
        stream, data = self.begin(body)
        self.http.send_data(stream, data, end_stream=True)
        return stream

    def begin(self, body: dict[str, object]) -> tuple[int, bytes]:
        """Send the head of a request; return its stream and its body."""
        stream, data = self.http.get_next_available_stream_id(), orjson.dumps(body)
        head = [(":method", "POST"), (":path", "/completion"), (":scheme", "http")]
        self.http.send_headers(
            stream, [*head, (":authority", "127.0.0.1"), ("content-length", str(len(data)))]
        )
        return stream, data

    async def hear(self, *, gives: int = 1 << 20) -> bool:
        """Take what has come, and let the server send so many bytes more; false at the end."""
        data = await asyncio.wait_for(self._reader.read(1 << 16), 60)
        for event in self.http.receive_data(data) if data else ():
            self._take(event, gives)
        with contextlib.suppress(OSError):
            await self.flush()
        return bool(data)

    def _take(self, event: Event, gives: int) -> None:
        match event:
            case ResponseReceived(stream_id=stream, headers=headers):
                found = {str(name): str(value) for name, value in headers}
                self.status[stream] = found[":status"]
            case DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                assert data is not None
                self.text[stream] = self.text.get(stream, b"") + data
                if length:
                    self.http.increment_flow_control_window(length)
                    with contextlib.suppress(StreamClosedError):  # that was its end
                        self.http.increment_flow_control_window(min(length, gives), stream)
            case StreamEnded(stream_id=stream) | StreamWasReset(stream_id=stream):
                self.ended.add(stream)


@asynccontextmanager
async def _connected(scene: Scene, *, window: int = 0) -> AsyncIterator[_Http2]:
    """Connect; with `window` each stream may bring so many bytes before more are asked for."""
    address = urlsplit(scene.pool.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    one = _Http2(reader, writer)
    one.http.initiate_connection()
    if window:
        one.http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
    await one.flush()
    try:
        yield one
    finally:
        writer.transport.abort()


def _completion(n: int) -> dict[str, object]:
    return {"prompt": "Once upon", "n_predict": n, "temperature": 0, "ignore_eos": True}


async def many_streams(scene: Scene) -> None:
    """Ask a hundred times at once over one connection: each is answered, or told when to return."""
    async with _connected(scene) as client:
        streams = [client.ask(_completion(4)) for _ in range(_N_STREAMS)]
        await client.flush()
        while not client.ended.issuperset(streams) and await client.hear():
            pass
        found = Counter(client.status.get(stream) for stream in streams)
        scene.expect(found.keys() <= {"200", "429", "503"}, f"answers: {found}")
        scene.expect(found["200"] > 0, "none was answered")


async def rapid_resets(scene: Scene) -> None:
    """Begin ten thousand requests and take each back at once, also after the server hangs up."""
    n_done = 0
    while n_done < _N_RESETS:
        async with _connected(scene) as client:
            with contextlib.suppress(OSError):
                while n_done < _N_RESETS and client.http.highest_outbound_stream_id < 1900:
                    opened = [client.begin(_completion(2000)) for _ in range(_N_MEANWHILE)]
                    for stream, _ in opened:
                        client.http.reset_stream(stream)
                    await client.flush()
                    n_done += _N_MEANWHILE
                    await asyncio.sleep(0)


async def small_windows(scene: Scene) -> None:
    """Read one answer byte by byte; let others wait for room that never comes, and leave."""
    async with _connected(scene, window=1) as client:
        stream = client.ask(_completion(8))
        await client.flush()
        while stream not in client.ended and await client.hear(gives=1):
            pass
        told = orjson.loads(client.text.get(stream, b"{}"))
        scene.expect(
            told.get("tokens_predicted") == 8, f"byte by byte: {client.text.get(stream)!r}"
        )
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(6):
            client = await stack.enter_async_context(_connected(scene, window=1))
            client.ask({**_completion(4000), "stream": True})
            await client.flush()
        await asyncio.sleep(_SILENT_S)


async def two_lengths(scene: Scene) -> None:
    """Send a length and chunks with a second request behind: there is one answer, a refusal."""
    hidden = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    pair = ("Content-Length: 5", "Transfer-Encoding: chunked")
    for first, second in (pair, pair[::-1]):
        head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\n{first}\r\n{second}\r\n\r\n"
        answer = await _raw(scene, head.encode() + b"0\r\n\r\n" + hidden)
        n_answers = answer.count(b"HTTP/1.1 ")
        scene.expect(n_answers == 1, f"{n_answers} answers to one request: {answer[:200]!r}")
        scene.expect(answer.startswith(b"HTTP/1.1 400"), f"answered with {answer[:60]!r}")


async def upgrades(scene: Scene) -> None:
    """Ask for h2c on the way: that is ignored, and the request is answered once."""
    body = orjson.dumps(_completion(2))
    for path, wanted in (("/health", b"200"), ("/completion", b"404")):
        head = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        )
        answer = await _raw(scene, head.encode())
        n_answers = answer.count(b"HTTP/1.1 ")
        is_one = n_answers == 1 and answer[9:12] == wanted
        scene.expect(is_one, f"{path}: {answer[:200]!r}")
    head = f"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: !\r\n\r\n"
    answer = await _raw(scene, (head + upgrade).encode() + body)
    scene.expect(answer.count(b"HTTP/1.1 ") <= 1, f"a wrong upgrade: {answer[:200]!r}")


async def _raw(scene: Scene, data: bytes) -> bytes:
    """Send bytes; return what comes until the server closes or is silent."""
    address, found = urlsplit(scene.pool.url), b""
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(data)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_SILENT_S):
                while more := await reader.read(1 << 16):
                    found += more
        return found
    finally:
        writer.transport.abort()


async def http2(scene: Scene) -> None:
    """All of it, one after the other."""
    for attack in (two_lengths, upgrades, many_streams, small_windows, rapid_resets):
        await attack(scene)


CASES = [
    FaultCase(
        name="D12",
        what="two lengths, h2c, 100 streams, 1-byte windows, 10,000 rapid resets of HTTP/2",
        inject=http2,
        pool=PoolShape(gateway={"queue_size": 400}),
    )
]
