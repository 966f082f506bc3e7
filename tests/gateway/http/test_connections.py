"""Connections of clients: how many there may be, and how long one may go without a request."""

import asyncio
import gc
import socket
import weakref
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvloop

from gateway import server
from gateway.http.connections import BoundedConnection
from gateway.http.protocols import pause
from protocol.config.limits import LimitsConfig
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import LIMIT_S, Running, running, until

HEALTH = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b'{"prompt": "x", "stream": true}'
POST = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(STREAM)

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(gateway: Running, data: bytes = b"") -> Pair:
    parts = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(data)
    return reader, writer


def address_of(gateway: Running) -> tuple[str, int]:
    parts = urlsplit(gateway.url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


async def rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        return await reader.read()


async def hang_up(*pairs: Pair) -> None:
    for _, writer in pairs:
        writer.close()
        await writer.wait_closed()


def open_connections(gateway: Running) -> int:
    return gateway.metrics.connections.n_open


async def test_a_client_that_leaves_holds_no_connection(gateway: Running) -> None:
    pair = await connect(gateway, HEALTH)
    assert await pair[0].readline() == b"HTTP/1.1 200 \r\n"
    assert open_connections(gateway) == 1
    await hang_up(pair)
    # Without a bound of ours it stays for the keep-alive time, which is far beyond this wait.
    await until(lambda: open_connections(gateway) == 0)


@pytest.mark.slow
async def test_a_connection_that_has_ended_is_freed_at_once(gateway: Running) -> None:
    """Each left 50 objects, which a collection of garbage had to find while all streams waited."""

    def alive() -> list[weakref.ref[BoundedConnection]]:
        return [weakref.ref(one) for one in gc.get_objects() if type(one) is BoundedConnection]

    gc.freeze()  # `alive` need not look at what all other tests hold
    gc.disable()
    try:
        n_before = len(alive())
        pair = await connect(gateway, HEALTH)
        assert await pair[0].readline() == b"HTTP/1.1 200 \r\n"
        connections = alive()
        assert len(connections) == n_before + 1
        await hang_up(pair)
        await until(lambda: sum(one() is not None for one in connections) == n_before)
    finally:
        gc.enable()


@pytest.mark.parametrize("n_present", [0, 3])
def test_of_many_in_the_backlog_those_that_have_left_are_not_served(
    tmp_path: Path, n_present: int
) -> None:
    async def check() -> None:
        async with running(tmp_path) as gateway:
            for _ in range(300):  # without a turn of the loop
                with socket.create_connection(address_of(gateway)) as client:
                    client.sendall(HEALTH)
            pairs = [await connect(gateway, HEALTH) for _ in range(n_present + 1)]
            for reader, _ in pairs:
                assert await reader.readline() == b"HTTP/1.1 200 \r\n"
            await hang_up(*pairs)
            assert sum(gateway.metrics.http_statuses.values()) < 30

    uvloop.run(check())  # which accepts one in a turn; asyncio's own loop accepts all at once


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_beside_many_busy_clients_many_are_accepted_in_a_turn_of_the_loop(
    tmp_path: Path, family: socket.AddressFamily
) -> None:
    """One a turn was too few: where 1,000 clients were busy, a new one waited for minutes."""

    async def check() -> None:
        path = str(tmp_path / "http.sock")
        async with running(tmp_path, host=f"127.0.0.1,{path}") as gateway:
            await gateway.add_worker(FakeOptions(n_slots=100, free_running=False))
            busy = [await connect(gateway, POST + STREAM) for _ in range(80)]
            await until(lambda: len(gateway.pool.transport.streams.by_id) == len(busy))
            clients = [socket.socket(family) for _ in range(300)]
            for client in clients:  # without a turn of the loop
                client.connect(path if family == socket.AF_UNIX else address_of(gateway))
            n_turns = 0
            async with asyncio.timeout(LIMIT_S):
                while open_connections(gateway) < len(busy) + len(clients):
                    await asyncio.sleep(0)
                    n_turns += 1
            for client in clients:
                client.close()
            await hang_up(*busy)
            assert n_turns < 30

    uvloop.run(check())


async def test_of_few_one_that_has_ended_only_its_half_is_served(gateway: Running) -> None:
    reader, writer = await connect(gateway, HEALTH)
    writer.write_eof()
    assert (await rest(reader)).startswith(b"HTTP/1.1 200")
    await hang_up((reader, writer))


@pytest.mark.parametrize("n_behind", [1, 20_000])
async def test_a_client_that_leaves_with_requests_behind_frees_its_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_behind: int
) -> None:
    monkeypatch.setattr(pause, "LOOK_S", 0.02)
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        whole = b'{"prompt": "x"}'
        head = POST.replace(b"%d" % len(STREAM), b"%d" % len(whole))
        pair = await connect(gateway, head + whole + HEALTH * n_behind)
        await worker.got(m.Generate)
        pair[1].transport.abort() if n_behind == 1 else pair[1].close()
        await worker.got(m.Cancel)
        await until(lambda: open_connections(gateway) == 0)


@pytest.mark.parametrize("half", [b"G", b"GET /livez HTTP/1.1\r\nHost: loc", HEALTH + b"GET /"])
async def test_half_a_head_is_closed(tmp_path: Path, half: bytes) -> None:
    async with running(tmp_path, limits=LimitsConfig(head_s=0.1)) as gateway:
        reader, writer = await connect(gateway, half[: len(HEALTH)])
        if len(half) > len(HEALTH):
            assert await reader.readuntil(b"\r\n\r\n")
            writer.write(half[len(HEALTH) :])
        await rest(reader)
        await hang_up((reader, writer))
        await until(lambda: open_connections(gateway) == 0)


async def test_a_slow_answer_is_no_slow_head(tmp_path: Path) -> None:
    async with running(tmp_path, limits=LimitsConfig(head_s=0.1)) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        reader, writer = await connect(gateway, POST + STREAM)
        await worker.got(m.Generate)
        half = await connect(gateway, b"GET")  # whose time is over first
        await rest(half[0])
        await worker.step(32)
        async with asyncio.timeout(LIMIT_S):
            assert await reader.readuntil(b"0\r\n\r\n")
        await hang_up((reader, writer), half)


async def test_the_longest_idle_makes_room_for_a_new_one(tmp_path: Path) -> None:
    async with running(tmp_path, limits=LimitsConfig(connections=2)) as gateway:
        first, second = await connect(gateway, HEALTH), await connect(gateway, HEALTH)
        for reader, _ in (first, second):
            await reader.readuntil(b"\r\n\r\n")
        third = await connect(gateway, HEALTH)
        assert (await third[0].readline()).startswith(b"HTTP/1.1 200")
        await rest(first[0])
        assert gateway.metrics.connections.n_closed_idle == 1
        assert not second[0].at_eof()
        await hang_up(first, second, third)


async def test_a_process_that_may_open_few_files_serves_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.connections.descriptors", lambda: 64)
    async with running(tmp_path) as gateway:
        assert (await gateway.client.get("/livez")).status_code == 200


async def test_with_none_idle_a_new_one_is_told_to_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, limits=LimitsConfig(connections=1)) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        busy = await connect(gateway, POST + STREAM)
        await worker.got(m.Generate)
        refused = await connect(gateway)
        answer = await rest(refused[0])
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        assert b'"code":503' in answer
        again = await connect(gateway)
        await rest(again[0])
        assert gateway.metrics.connections.n_refused == 2
        told = [one for one in caplog.records if one.getMessage() == "connections refused"]
        assert [line.__dict__["cause"] for line in told] == ["1 are open, and each has a request"]
        await hang_up(busy, refused, again)


async def test_an_idle_connection_is_closed_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.1)
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        busy = await connect(gateway, POST + STREAM)
        await worker.got(m.Generate)
        silent, idle = await connect(gateway), await connect(gateway, HEALTH)
        assert await rest(silent[0]) == b""
        assert (await rest(idle[0])).startswith(b"HTTP/1.1 200")
        await worker.step(32)
        assert (await rest(busy[0])).endswith(b"0\r\n\r\n")  # idle only from here on
        await hang_up(busy, silent, idle)
        await until(lambda: open_connections(gateway) == 0)


async def test_a_server_that_closes_ends_idle_connections_at_once(gateway: Running) -> None:
    silent, idle = await connect(gateway), await connect(gateway, HEALTH)
    await idle[0].readuntil(b"\r\n\r\n")
    await until(lambda: open_connections(gateway) >= 2)
    await gateway.server.close(grace_s=LIMIT_S)
    assert not await rest(silent[0])
    await rest(idle[0])
    await hang_up(silent, idle)


async def test_connections_that_are_cut_at_the_end_leave_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        busy = await connect(gateway, (POST + STREAM) * 20)
        await worker.got(m.Generate)
        await gateway.server.close(grace_s=0.01)
        await rest(busy[0])
        await hang_up(busy)
        await until(lambda: open_connections(gateway) == 0)
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []


async def test_who_is_cut_at_the_end_gets_no_empty_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        busy = await connect(gateway, POST + STREAM.replace(b"true", b"null"))
        await worker.got(m.Generate)
        await gateway.server.close(grace_s=0.01)
        assert not await rest(busy[0])
        await hang_up(busy)


async def test_an_idle_connection_is_one_task(gateway: Running) -> None:
    before = len(asyncio.all_tasks())
    pairs = [await connect(gateway, HEALTH) for _ in range(4)]
    for reader, _ in pairs:
        await reader.readuntil(b"\r\n\r\n")
    await until(lambda: len(asyncio.all_tasks()) <= before + len(pairs))
    await hang_up(*pairs)


async def test_a_long_head_waits_for_its_turn_and_a_short_one_does_not(gateway: Running) -> None:
    """Fifty heads of 6,000 headers at once held up all others for 1.6 s."""
    long = HEALTH.replace(b"\r\n\r\n", b"\r\n" + b"a:" + b"b" * 20_000 + b"\r\n\r\n")
    async with gateway.server._config.connections.turns.lock:
        waiting = await connect(gateway, long)
        short = await connect(gateway, HEALTH)
        assert b" 200 " in await short[0].readuntil(b"\r\n\r\n")
        assert not waiting[0]._buffer  # type: ignore[attr-defined]
    assert b" 200 " in await waiting[0].readuntil(b"\r\n\r\n")
    await hang_up(waiting, short)


async def test_a_server_that_retires_ends_each_connection_with_its_next_answer(
    gateway: Running,
) -> None:
    reader, writer = await connect(gateway, HEALTH)
    assert b"connection: close" not in await reader.readuntil(b"\r\n\r\n")
    gateway.server.retire()
    writer.write(HEALTH)
    assert b"connection: close" in await rest(reader)
    await hang_up((reader, writer))
    await until(lambda: open_connections(gateway) == 0)


async def test_who_has_connected_just_before_the_end_is_answered(gateway: Running) -> None:
    """Of 350 clients at one of two gateways that got SIGTERM, 190 were hung up on."""
    new, silent, idle = await connect(gateway), await connect(gateway), await connect(gateway)
    await until(lambda: open_connections(gateway) == 3)
    idle[1].write(HEALTH)
    await idle[0].readuntil(b"\r\n\r\n")
    ending = asyncio.create_task(gateway.server.answer_last(limit_s=LIMIT_S))
    await rest(idle[0])  # it is closed, as one whose client will try again
    new[1].write(HEALTH)
    assert (await rest(new[0])).startswith(b"HTTP/1.1 200")
    await ending
    await gateway.server.close(grace_s=LIMIT_S)
    assert not await rest(silent[0])
    await hang_up(new, silent, idle)
