"""Readers of kept streams that stall, or leave over HTTP/2: the stream goes on, nothing stays."""

import asyncio
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.http.protocols.test_hostile_clients import PATIENCE, Http2Client, gone, http2
from tests.gateway.inprocess import Running, running, until
from tests.gateway.replay.test_http_replay import STEPPED, WORDS, replay, said

BODY = json.dumps(WORDS).encode()
LONG = json.dumps({"prompt": "x" * 10_000, "n_predict": 1000, "ignore_eos": True, "stream": True})


def ask(client: Http2Client) -> int:
    """Send a request for a kept stream."""
    stream = client.http.get_next_available_stream_id()
    head = {":method": "POST", ":path": "/completion", ":scheme": "http", ":authority": "localhost"}
    client.http.send_headers(stream, [*head.items(), ("x-conversation-id", "c")])
    client.http.send_data(stream, BODY, end_stream=True)
    client.flush()
    return stream


@pytest.mark.parametrize("how", ["reset", "abort"])
async def test_it_goes_on_when_an_http2_client_leaves(tmp_path: Path, how: str) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(STEPPED)
        async with http2(gateway) as client:
            stream = ask(client)
            await worker.got(m.Generate)
            session = gateway.keeper.sessions.find("", "c")
            assert session is not None
            if how == "reset":
                client.http.reset_stream(stream)
                client.flush()
            else:
                client.writer.transport.abort()
            await until(lambda: not session.n_readers)
            await worker.step(10)
            await until(lambda: session.is_over)
        assert said((await replay(gateway, "c")).text) == "a b c d"
        await gateway.client.aclose()
        await gone(gateway)


async def test_http2_clients_get_and_replay_it(gateway: Running) -> None:
    async with http2(gateway) as client:
        assert await client.over(ask(client)) == b"200"
        assert await client.over(client.ask(b"/v1/stream?conv_id=c")) == b"200"
        assert not client.resets


@pytest.mark.slow
@pytest.mark.parametrize("replays", [False, True])
async def test_a_reader_that_takes_nothing_holds_nobody_up(tmp_path: Path, replays: bool) -> None:
    async with running(tmp_path, limits=PATIENCE) as gateway:
        await gateway.add_worker(FakeOptions())
        headers = {"X-Conversation-Id": "c", "Content-Type": "application/json"}
        if replays:
            await gateway.client.post("/completion", content=LONG, headers=headers)
        with socket.socket() as client:
            await _stall(gateway, client, replays=replays)
            await until(lambda: gateway.keeper.sessions.find("", "c") is not None)
            session = gateway.keeper.sessions.find("", "c")
            assert session is not None
            await until(lambda: session.is_over and session.total_bytes > 4 * 1024 * 1024)
            await until(lambda: not session.n_readers)
        assert session.is_whole
        await gateway.client.aclose()
        await gone(gateway)


async def _stall(gateway: Running, client: socket.socket, *, replays: bool) -> None:
    """Ask for a stream and read nothing of it."""
    parts = urlsplit(gateway.url)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((parts.hostname, parts.port))
    client.setblocking(False)
    session = gateway.keeper.sessions.find("", "c")
    at = session.n_dropped if session is not None else 0
    lines = [
        f"GET /v1/stream?conv_id=c&from={at} HTTP/1.1" if replays else "POST /completion HTTP/1.1",
        "Host: localhost",
        *([] if replays else ["X-Conversation-Id: c", f"Content-Length: {len(LONG)}"]),
        *("", "" if replays else LONG),
    ]
    text = "\r\n".join(lines).encode()
    await asyncio.get_running_loop().sock_sendall(client, text)
