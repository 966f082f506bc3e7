"""Clients that leave, stall or send nonsense over HTTP/1.1 and HTTP/2 leave nothing behind."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from hyperframe.frame import PriorityFrame

from gateway.http.protocols import http2 as protocol
from protocol.config.limits import LimitsConfig
from tests.gateway.inprocess import LIMIT_S, Running, running, until

CHUNKS = b"1\r\nx\r\n" * 40
"""More than wait for an application that reads no body."""
LARGE = "/openapi.json"
CONNECT = ((b":method", b"CONNECT"),)
PATIENCE = LimitsConfig(send_timeout_s=0.2)


class Http2Client:
    """One connection that speaks HTTP/2 from its first byte, and checks nothing that it sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.http = H2Connection(
            H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        )
        self.status: dict[int, bytes] = {}
        self.resets: dict[int, int] = {}
        self.ended: set[int] = set()

    def ask(self, path: bytes = b"/livez", *more: tuple[bytes, bytes], **kwargs: Any) -> int:
        """Send the head of a request; return its stream."""
        stream = self.http.get_next_available_stream_id()
        head = [(b":method", b"GET"), (b":path", path), (b":scheme", b"http")]
        names = {name for name, _ in more}
        if more == CONNECT:
            names |= {b":path", b":scheme"}
        head = [one for one in head if one[0] not in names]
        self.http.send_headers(
            stream, [*more, *head, (b":authority", b"localhost")], **{"end_stream": True} | kwargs
        )
        self.flush()
        return stream

    def flush(self) -> None:
        self.writer.write(self.http.data_to_send())

    async def over(self, stream: int) -> bytes:
        """Return the status of a stream once it has ended; empty if it was reset before."""
        async with asyncio.timeout(LIMIT_S):
            while stream not in self.ended | self.resets.keys():
                data = await self._reader.read(1 << 16)
                assert data, "the connection was closed"
                self._take(data)
                self.flush()
        return self.status.get(stream, b"")

    def _take(self, data: bytes) -> None:
        for event in self.http.receive_data(data):
            match event:
                case ResponseReceived(stream_id=int(stream), headers=headers):
                    self.status[stream] = bytes(dict(headers or ())[b":status"])
                case StreamEnded(stream_id=int(stream)):
                    self.ended.add(stream)
                case StreamReset(stream_id=int(stream), error_code=code):
                    self.resets[stream] = int(code)


@contextlib.asynccontextmanager
async def http2(gateway: Running, window: int | None = None) -> AsyncIterator[Http2Client]:
    parts = urlsplit(gateway.url)
    client = Http2Client(*await asyncio.open_connection(parts.hostname, parts.port))
    client.http.initiate_connection()
    if window is not None:
        client.http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
    client.flush()
    try:
        yield client
    finally:
        await cut(client.writer)


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def gone(gateway: Running) -> None:
    await until(lambda: gateway.metrics.connections.n_open == 0)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Any:
    """Nothing of all this is an error of ours."""
    yield
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize("line", [b"GET /livez", b"GET /openapi.json", b"POST /nothing"])
async def test_a_body_that_nobody_reads_holds_no_connection(gateway: Running, line: bytes) -> None:
    parts = urlsplit(gateway.url)
    head = line + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(head + CHUNKS)
    assert await reader.readuntil(b"\r\n\r\n")
    await cut(writer)
    await gone(gateway)


@pytest.mark.parametrize("settings", [b"AAMAAABkAAQAAP__", b"!", b"AA", b""])
async def test_an_upgrade_to_http2_is_ignored(gateway: Running, settings: bytes) -> None:
    """Through a proxy that passes it on, it would be a tunnel past the proxy's rules."""
    parts = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nHTTP2-Settings: " + settings
    async with asyncio.timeout(LIMIT_S):
        writer.write(head + b"\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
    await cut(writer)
    await gone(gateway)


@pytest.mark.parametrize("path", ["/nothing", "/models/load", "/livez", "/tools"])
async def test_an_answer_before_the_end_of_a_body_is_seen_and_the_connection_kept(
    gateway: Running, path: str
) -> None:
    parts = urlsplit(gateway.url)
    body = b"x" * 8_000_000  # more than the buffers of a connection hold
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    async with asyncio.timeout(LIMIT_S):
        writer.write(head.encode() + body)
        await writer.drain()
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = await reader.read()
    early, then = re.findall(rb"HTTP/1\.1 (\d+)", answers)
    assert early in {b"403", b"404", b"501"}
    assert then == b"200"
    await cut(writer)
    await gone(gateway)


async def test_a_body_that_stops_behind_its_answer_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path, limits=LimitsConfig(body_patience_s=0.2)) as gateway:
        parts = urlsplit(gateway.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
        async with asyncio.timeout(LIMIT_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 404")
        await gone(gateway)
        await cut(writer)


async def test_an_http2_body_that_nobody_reads_holds_no_connection(gateway: Running) -> None:
    async with http2(gateway) as client:
        stream = client.ask(b"/nothing", (b":method", b"POST"), end_stream=False)
        for _ in range(40):
            client.http.send_data(stream, b"x")
        client.flush()
        assert await client.over(stream) == b"404"
    await gone(gateway)


async def test_a_body_behind_its_answer_leaves_the_other_streams_alone(gateway: Running) -> None:
    async with http2(gateway) as client:
        early = client.ask(b"/nothing", (b":method", b"POST"), end_stream=False)
        assert await client.over(early) == b"404"
        for _ in range(20):  # more than one window of the connection
            client.http.send_data(early, b"x" * 10_000)
            assert await client.over(client.ask()) == b"200"
        client.http.end_stream(early)
        assert await client.over(client.ask()) == b"200"
    await gone(gateway)


async def test_a_body_without_end_behind_its_answer_is_reset(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_MAX_DROPPED", 30_000)
    async with http2(gateway) as client:
        early = client.ask(b"/nothing", (b":method", b"POST"), end_stream=False)
        assert await client.over(early) == b"404"
        for _ in range(4):
            client.http.send_data(early, b"x" * 10_000)
        assert await client.over(client.ask()) == b"200"
        assert early in client.resets
    await gone(gateway)


async def test_a_client_that_leaves_a_full_window_holds_nothing(gateway: Running) -> None:
    async with http2(gateway, window=0) as client:
        streams = [client.ask(LARGE.encode()) for _ in range(3)]
        while not client.status.keys() >= set(streams):
            client._take(await client._reader.read(1 << 16))
    await gone(gateway)


async def test_a_stream_without_room_is_reset_and_its_connection_lives(tmp_path: Path) -> None:
    async with running(tmp_path, limits=PATIENCE) as gateway:
        async with http2(gateway, window=0) as client:
            stream = client.ask(LARGE.encode())
            await client.over(stream)
            assert stream in client.resets
            (connection,) = gateway.server._config.connections._open
            served = connection.protocol.protocol
            assert isinstance(served, protocol.Http2)
            await until(lambda: not served.stream_buffers)
            assert gateway.metrics.connections.n_open == 1
            client.http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 16})
            assert await client.over(client.ask()) == b"200"
        await gone(gateway)


@pytest.mark.slow
async def test_a_slow_reader_of_http2_gets_all_of_it(tmp_path: Path) -> None:
    async with running(tmp_path, limits=PATIENCE) as gateway:
        whole = (await gateway.client.get(LARGE)).content
        async with http2(gateway, window=0) as client:
            stream = client.ask(LARGE.encode())
            for _ in range(len(whole) // 16_384 + 1):
                await asyncio.sleep(0.05)  # in all far beyond the patience
                client.http.increment_flow_control_window(16_384, stream)
                client.http.increment_flow_control_window(16_384)
                client.flush()
            assert await client.over(stream) == b"200"
            assert not client.resets
        await gateway.client.aclose()
        await gone(gateway)


async def test_a_reader_that_takes_nothing_loses_its_connection(tmp_path: Path) -> None:
    async with running(tmp_path, limits=PATIENCE) as gateway:
        parts = urlsplit(gateway.url)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((parts.hostname, parts.port))
            client.setblocking(False)
            asked = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % LARGE.encode() * 100
            await asyncio.get_running_loop().sock_sendall(client, asked)
            await until(lambda: gateway.metrics.connections.n_open == 1)
            await gone(gateway)


ODD: dict[str, tuple[tuple[bytes, bytes], ...]] = {
    "a path beyond ASCII": ((b":path", b"/liv\xff"),),
    "a method beyond ASCII": ((b":method", b"G\xff"),),
    "CONNECT": CONNECT,
    "a websocket": (*CONNECT, (b":protocol", b"websocket")),
}


@pytest.mark.parametrize("head", ODD.values(), ids=ODD)
async def test_an_odd_head_ends_its_own_stream(
    gateway: Running, head: tuple[tuple[bytes, bytes], ...]
) -> None:
    async with http2(gateway) as client:
        assert await client.over(client.ask(b"/livez", *head)) == b""
        assert await client.over(client.ask()) == b"200"
    await gone(gateway)


async def test_frames_of_priority_are_ignored(gateway: Running) -> None:
    async with http2(gateway) as client:
        for i in range(1500):
            frame = PriorityFrame(2 * i + 1001, depends_on=2 * i + 999, stream_weight=5)
            client.writer.write(frame.serialize())
        assert await client.over(client.ask()) == b"200"
        assert await client.over(client.ask()) == b"200"
    await gone(gateway)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"chat", b","])
async def test_a_websocket_is_an_ordinary_request(gateway: Running, name: bytes) -> None:
    parts = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Protocol: " + name + b"\r\n\r\n"
    )
    async with asyncio.timeout(LIMIT_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await cut(writer)
    await gone(gateway)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_server_that_retires_says_goaway_once_a_connection_is_idle(
    gateway: Running, is_busy: bool
) -> None:
    async with http2(gateway) as client:
        assert await client.over(client.ask()) == b"200"
        stream = client.ask(b"/tokenize", (b":method", b"POST"), end_stream=False) if is_busy else 0
        if is_busy:
            (connection,) = gateway.server._config.connections._open
            await until(lambda: not connection._is_idle)
        gateway.server.retire()
        if is_busy:
            client.http.send_data(stream, b"{}", end_stream=True)
            client.flush()
        events = []
        async with asyncio.timeout(LIMIT_S):
            while data := await client._reader.read(1 << 16):
                events += client.http.receive_data(data)
        assert any(isinstance(one, ConnectionTerminated) for one in events)
        assert any(isinstance(one, StreamEnded) for one in events) is is_busy
    await gone(gateway)
