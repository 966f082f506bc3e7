"""Chunks past the layers of the server: the same bytes, and only where nothing else is due."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import h11
import pytest
from starlette.types import Receive, Scope, Send

from gateway.api.reply import ResponseFormatter
from gateway.api.sse import PING, event
from gateway.http import direct_write
from gateway.http.direct_write import DIRECT_WRITER, DirectWriteMiddleware, DirectWriter
from gateway.http.event_stream import ChoiceWriter, EventStream
from gateway.http.http_server import HttpServer
from gateway.metrics.counters import ConnectionCounts, ModelLatencies
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.stream import DeltaOffers, TaskStream, Write
from gateway.pool.tasks.task import Task
from gateway.server import server_config
from protocol.config.config import GatewayConfig
from protocol.process.listening import listen, url_of
from protocol.wire.messages import Delta, Done, Finish, Tokenize, ToolCallDelta
from tests.gateway.inprocess import running


def sending() -> h11.Connection:
    """A connection that has sent the head of a response without a length."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.next_event()
    connection.send(h11.Response(status_code=200, headers=[]))
    return connection


SENDING = sending()
FRAMES = [b"data: 1\n\n", b"data: " + b"x" * 300 + b"\n\n", b":\n\n"]


class Transport(asyncio.WriteTransport):
    """Keeps what is written; `waiting` bytes are still in it."""

    def __init__(self, waiting: int = 0, closing: bool = False) -> None:
        super().__init__()
        self.waiting = waiting
        self.closing = closing
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.closing


class Probe:
    """An application that streams all frames and keeps what way it found."""

    def __init__(self) -> None:
        self.chunks: list[DirectWriter | None] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.chunks.append(scope[DIRECT_WRITER])
        events = EventStream(send, 0, 30, writer=scope[DIRECT_WRITER])
        for frame in FRAMES:
            await events.write(frame)
        await events.finish()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[str, int]]:
    """Run an application under Hypercorn."""
    config = GatewayConfig(port=0)
    socks = listen(config)
    parts = urlsplit(url_of(socks[0], config))
    server = HttpServer(app, server_config(config, ConnectionCounts()), socks)
    await server.start()
    yield str(parts.hostname), int(parts.port or 0)
    await server.close(grace_s=0.2)


async def answer(where: tuple[str, int], request: bytes) -> tuple[bytes, bytes]:
    """Return head and body as they came."""
    reader, writer = await asyncio.open_connection(*where)
    writer.write(request + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head, body


@pytest.mark.parametrize(
    ("request_line", "is_short"),
    [(b"POST / HTTP/1.1", True), (b"POST / HTTP/1.0", False), (b"HEAD / HTTP/1.1", False)],
)
async def test_chunks_of_http_1_1_find_the_short_way_through_this_hypercorn(
    request_line: bytes, is_short: bool
) -> None:
    probe = Probe()
    async with serving(DirectWriteMiddleware(probe)) as where:
        await answer(where, request_line)
    assert [chunks is not None for chunks in probe.chunks] == [is_short]


async def test_the_short_way_writes_what_the_long_way_writes() -> None:
    async def no_chunks(scope: Scope, receive: Receive, send: Send) -> None:
        await probe({**scope, DIRECT_WRITER: None}, receive, send)

    probe = Probe()
    async with serving(DirectWriteMiddleware(probe)) as short, serving(no_chunks) as long:
        head, body = await answer(short, b"POST / HTTP/1.1")
        _, expected = await answer(long, b"POST / HTTP/1.1")
    assert b"transfer-encoding: chunked" in head.lower()
    assert body == expected == b"".join(b"%x\r\n%b\r\n" % (len(f), f) for f in [*FRAMES, b""])
    assert [chunks is not None for chunks in probe.chunks] == [True, False]


@pytest.mark.parametrize("transport", [Transport(waiting=1), Transport(closing=True)])
async def test_what_has_to_wait_or_has_nobody_takes_the_long_way(transport: Transport) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    events = EventStream(send, 0, 30, writer=DirectWriter(transport, SENDING))
    await events.write(b"a")
    assert [one.get("body") for one in sent] == [None, b"a"]
    transport.waiting, transport.closing = 0, False
    await events.write(b"b")
    assert transport.written == b"1\r\nb\r\n" and len(sent) == 2
    await events.finish()
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize("has_short_way", [True, False])
async def test_each_event_of_a_write_is_a_chunk_of_its_own(has_short_way: bool) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body"))

    transport = Transport()
    events = EventStream(
        send, 0, 30, writer=DirectWriter(transport, SENDING) if has_short_way else None
    )
    await events.write(b"data: 1\n\n" + PING + b"event: x\ndata: 2\n\ndata: a line\n")
    frames = [b"data: 1\n\n", PING, b"event: x\ndata: 2\n\n", b"data: a line\n"]
    if has_short_way:
        assert transport.written == b"".join(b"%x\r\n%b\r\n" % (len(f), f) for f in frames)
    else:
        assert sent == [None, *frames]


class _Counted(bytes):
    """Counts the bytes of all its parts that are copied, and of theirs."""

    n_copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if isinstance(at, slice):
            _Counted.n_copied += len(found)
            return _Counted(found)
        return found


async def test_of_many_events_each_is_copied_once() -> None:
    async def send(message: Any) -> None:
        assert len(message.get("body", b"")) <= 9

    events = EventStream(send, 0, 30)
    await events.write(_Counted(b"data: 1\n\n" * 200))
    assert _Counted.n_copied == 9 * 200


async def test_another_server_has_no_short_way() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope.get(DIRECT_WRITER))

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "http_version": "1.1", "method": "POST"}
    await DirectWriteMiddleware(app)(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]  # never called
    assert seen == [None]


def of_another_class(layers: dict[str, Any]) -> None:
    layers["_LAYERS"] = (Transport, *direct_write._LAYERS[1:])


def of_another_version(layers: dict[str, Any]) -> None:
    layers["KNOWN_VERSIONS"] = ("0.17.",)


def without_the_classes(layers: dict[str, Any]) -> None:
    layers["_LAYERS"] = ()


@pytest.mark.parametrize("change", [of_another_class, of_another_version, without_the_classes])
async def test_an_unknown_server_writes_the_stream_itself(
    change: Callable[[dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers: dict[str, Any] = {}
    change(layers)
    for name, value in layers.items():
        monkeypatch.setattr(direct_write, name, value)
    probe = Probe()
    async with serving(DirectWriteMiddleware(probe)) as where:
        _, body = await answer(where, b"POST / HTTP/1.1")
    assert probe.chunks == [None]
    assert body == b"".join(b"%x\r\n%b\r\n" % (len(f), f) for f in [*FRAMES, b""])


@pytest.mark.parametrize("missing", ["connection", "writer"])
async def test_a_layer_without_its_attribute_writes_the_stream_itself(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[DirectWriter | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        protocol = send.__self__.send.__self__  # type: ignore[attr-defined]
        owner = protocol if missing == "connection" else protocol.send.__self__
        kept = getattr(owner, missing)
        delattr(owner, missing)
        found.append(direct_write.find_direct_writer(scope, send))
        setattr(owner, missing, kept)
        await Probe()({**scope, DIRECT_WRITER: found[-1]}, receive, send)

    async with serving(app) as where:
        _, body = await answer(where, b"POST / HTTP/1.1")
    assert found == [None] and FRAMES[0] in body


async def test_a_body_that_h11_does_not_expect_takes_the_servers_way() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body"))

    transport = Transport()
    writer = DirectWriter(transport, h11.Connection(h11.SERVER))
    events = EventStream(send, 0, 30, writer=writer)
    await events.write(b"a")
    assert writer.is_free and not events.is_free
    assert sent == [None, b"a"] and not transport.written


async def test_responses_are_counted_by_their_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("direct", "server"):
        if way == "server":
            monkeypatch.setattr(direct_write, "KNOWN_VERSIONS", ())
        (tmp_path / way).mkdir()
        async with running(tmp_path / way, metrics=True) as gateway:
            await gateway.add_worker()
            asked = {"prompt": "to be or not", "stream": True}
            response = await gateway.post("/completion", asked)
            texts = [json.loads(one[6:])["content"] for one in response.text.split("\n\n") if one]
            assert "".join(texts) == "to be or not"
            metrics = (await gateway.client.get("/metrics")).text
        assert f'llamapool_event_streams_total{{way="{way}"}} 1.0' in metrics


class Lines:
    """Stands for a formatter: each part of a delta is an event."""

    is_read_by_chunk = False

    def delta(self, _: int, message: Delta) -> bytes:
        return b"".join(event(part.encode()) for part in (message.reasoning, message.text) if part)

    def done(self, *_: object) -> bytes:
        return b"end"


TEXTS = [Delta(text=letter) for letter in "abcd"]


@pytest.mark.parametrize(
    ("deltas", "at_once"),
    [
        (TEXTS, "bcd"),
        ([Delta(text=""), *TEXTS], "bcd"),
        ([TEXTS[0], Delta(text=""), TEXTS[1]], "b"),
        ([Delta(reasoning="r"), Delta(reasoning="s"), TEXTS[0], TEXTS[1]], "sb"),
        ([TEXTS[0], Delta(tool_calls=(ToolCallDelta(index=0),)), TEXTS[1], TEXTS[2]], "c"),
        ([TEXTS[0], Delta(reasoning="r", text="b"), TEXTS[2]], "c"),
    ],
)
async def test_more_of_the_same_part_is_written_without_waking_its_task(
    deltas: list[Delta], at_once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    prepare = EventStream.prepare

    def prepares(events: EventStream, frames: Sequence[bytes]) -> Write:
        written.extend(frames)
        return prepare(events, frames)

    monkeypatch.setattr(EventStream, "prepare", prepares)
    transport = Transport()
    one, pumping = await started(DirectWriter(transport, SENDING))
    for delta in deltas:
        one.push_delta(delta, 11.0)
        for _ in range(4):
            await asyncio.sleep(0)
    one.push(Done(finish=Finish.EOS))
    await pumping
    assert b"".join(written) == b"".join(event(part.encode()) for part in at_once)
    frames = [event(part.encode()) for d in deltas for part in (d.reasoning, d.text) if part]
    assert transport.written == b"".join(b"%x\r\n%b\r\n" % (len(f), f) for f in [*frames, b"end"])


async def test_text_for_a_client_that_does_not_read_waits_for_it() -> None:
    sent: list[Any] = []
    transport = Transport()
    one, pumping = await started(DirectWriter(transport, SENDING), sent)
    one.push_delta(TEXTS[0], 11.0)
    for _ in range(4):
        await asyncio.sleep(0)
    transport.waiting = 1
    one.push_delta(TEXTS[1], 11.0)
    for _ in range(4):
        await asyncio.sleep(0)
    one.push(Done(finish=Finish.EOS))
    await pumping
    assert transport.written == b"9\r\n" + event(b"a") + b"\r\n"
    assert [message.get("body") for message in sent] == [None, event(b"b"), b"end"]


async def started(
    writer: DirectWriter, sent: list[Any] | None = None
) -> tuple[TaskStream, "asyncio.Task[None]"]:
    """Begin to write a choice to a client."""

    async def send(message: Any) -> None:
        (sent if sent is not None else []).append(message)

    one = TaskStream(
        Task(TaskSpec(task_id=1, model="m"), 10.0),
        Tokenize(content=""),
        latencies=ModelLatencies(),
        offers=DeltaOffers(),
        on_close=lambda _: None,
    )
    events = EventStream(send, 0, 30, writer=writer)
    pumping = asyncio.create_task(
        ChoiceWriter(0, one, cast(ResponseFormatter, Lines()), events).run()
    )
    await asyncio.sleep(0)
    return one, pumping
