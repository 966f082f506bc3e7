"""The connection for admins' orders: its end, and questions that fail in ways of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.fleet.supervisor_link import SupervisorLink
from protocol.errors import ErrorCode, TaskError
from protocol.process.control import (
    AbortOrder,
    Answered,
    GoldenQuestion,
    Line,
    decode,
    encode,
)
from tests.gateway.inprocess import until


class Peer:
    """A supervisor that answers no order."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.writer: asyncio.StreamWriter | None = None

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while data := await reader.readline():
            self.lines.append(decode(data))

    def send(self, line: Line) -> None:
        assert self.writer is not None
        self.writer.write(encode(line))

    def heard(self, kind: type[Line]) -> bool:
        return any(isinstance(line, kind) for line in self.lines)


async def broken(_worker: str, _prompt: str, _n_predict: int) -> str:
    raise ValueError("no such thing")


@asynccontextmanager
async def linked(folder: Path) -> AsyncIterator[tuple[SupervisorLink, Peer]]:
    path, peer = str(folder / "control.sock"), Peer()
    server = await asyncio.start_unix_server(peer.converse, path)
    link = SupervisorLink(path, ask=broken, retired=lambda _name: None, timeout_s=60.0)
    link.open()
    await until(lambda: bool(peer.lines))
    yield link, peer
    link.close()
    assert peer.writer is not None
    peer.writer.close()
    server.close()


async def test_an_order_fails_at_once_when_its_connection_breaks(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, peer):
        order = asyncio.create_task(link.order(lambda number: AbortOrder(id=number)))
        await until(lambda: peer.heard(AbortOrder))
        assert peer.writer is not None
        peer.writer.close()
        async with asyncio.timeout(5):
            with pytest.raises(TaskError) as refusal:
                await order
        assert refusal.value.code is ErrorCode.UNAVAILABLE


async def test_a_question_that_no_worker_can_be_asked_is_answered(tmp_path: Path) -> None:
    async with linked(tmp_path) as (_, peer):
        peer.send(GoldenQuestion(id=3, worker="w", prompt="a", n_predict=1))
        async with asyncio.timeout(5):
            await until(lambda: peer.heard(Answered))
        assert peer.lines[-1] == Answered(id=3, error="ValueError: no such thing")
