"""What no well-behaved client sends: hostile framing, and readers that do not read."""

import asyncio
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from protocol.process.logs import event_text
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import LIMIT_S, Running, running, until


async def _raw(gateway: Running, data: bytes) -> bytes:
    """Send bytes on a fresh connection and return everything that comes back."""
    parts = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(data)
    async with asyncio.timeout(LIMIT_S):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_two_lengths_of_one_body_are_refused(gateway: Running) -> None:
    answer = await _raw(
        gateway,
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"invalid_request_error" in answer


async def test_a_flood_of_headers_is_refused(gateway: Running) -> None:
    headers = b"".join(b"X-%d: y\r\n" % i for i in range(120))
    answer = await _raw(
        gateway,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + headers + b"Connection: close\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 431")


async def test_a_flood_of_parameters_is_refused(gateway: Running) -> None:
    """Each cost the loop some microseconds, two or three times, also without a key."""
    for query, status in ((b"a=b&" * 16_000, b"414"), (b"a=" + b"b" * 8000, b"200")):
        head = b"GET /livez?%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % query
        assert (await _raw(gateway, head)).startswith(b"HTTP/1.1 " + status)


async def test_a_log_line_holds_no_line_of_the_client(
    gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="gateway.pool.requests.book"):
        await _raw(
            gateway, b"GET /a%0Aforged HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
    (line,) = [line for line in map(event_text, caplog.records) if "forged" in line]
    assert "\n" not in line and r'path="/a\nforged"' in line


@pytest.mark.slow
async def test_a_reader_that_stops_reading_loses_its_slot(tmp_path: Path) -> None:
    async with running(tmp_path, timeout_s=1.0) as gateway:
        worker = await gateway.add_worker(FakeOptions(n_slots=1))
        body = json.dumps({"prompt": "x" * 8192, "ignore_eos": True, "stream": True}).encode()
        parts = urlsplit(gateway.url)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((parts.hostname, parts.port))
            client.sendall(
                b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
                % len(body)
                + body
            )
            await worker.got(m.Cancel)
            await until(lambda: gateway.pool.health().slots_idle == 1)


async def test_http2_needs_a_key_and_ends_a_broken_stream(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("k",), continues=False, metrics=True) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        async with httpx.AsyncClient(
            base_url=gateway.url, http1=False, http2=True, timeout=LIMIT_S
        ) as client:
            assert (await client.get("/v1/models")).status_code == 401
            metrics = await client.get("/metrics", headers={"X-Api-Key": "k"})
            assert b"process-start-time-unix" in [name for name, _ in metrics.headers.raw]
            asking = asyncio.create_task(
                client.post(
                    "/completion",
                    json={"prompt": "a", "ignore_eos": True, "stream": True},
                    headers={"X-Api-Key": "k"},
                )
            )
            await worker.got(m.Generate)
            await worker.step(2)
            await worker.die()
            response = await asking
    assert response.http_version == "HTTP/2"
    assert '"code":503' in response.text.strip().split("\n")[-1]
