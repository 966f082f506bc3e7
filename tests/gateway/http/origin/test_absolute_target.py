"""Whole URLs in the request line, over a socket."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.gateway.inprocess import Running, running


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, allowed_hosts=("pool.example",)) as one:
        yield one


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/livez", 200),
        (b"http://pool.example/livez", 200),
        (b"HTTPS://pool.example:80/livez?a=b", 200),
        (b"http://pool.example/%6civez", 200),
        (b"http://pool.example", 200),
        (b"http://pool.example?a=b", 200),
        (b"http://pool.example//livez", 404),
        (b"http://evil.example/livez", 403),
        (b"http://pool.example@evil.example/livez", 404),
        (b"ftp://pool.example/livez", 404),
        (b"http:///livez", 404),
    ],
)
async def test_the_url_of_a_request_line_stands_above_its_host(
    gateway: Running, target: bytes, status: int
) -> None:
    assert await _asked(gateway, target, b"pool.example") == status


async def test_a_name_of_the_url_is_judged_and_not_the_header(gateway: Running) -> None:
    assert await _asked(gateway, b"http://pool.example/livez", b"evil.example") == 200


async def _asked(gateway: Running, target: bytes, host: bytes) -> int:
    parts = urlsplit(str(gateway.client.base_url))
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host))
    line = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    return int(line.split()[1])
