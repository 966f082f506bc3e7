"""The supervisor's end of the control channel, and the lines on it."""

import errno
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.config.rollout_config import GoldenConfig
from protocol.errors import ConfigError
from protocol.process.control import (
    ControlError,
    FleetReport,
    Line,
    Listed,
    ModelInfo,
    Order,
    Phase,
    ProcessReport,
    Reply,
    RolloutOrder,
    RolloutReport,
    RolloutState,
    Subscribe,
    Verb,
    WorkerOrder,
    WorkerReport,
    WorkerVerb,
    decode,
    encode,
)
from worker.supervisor.control import ControlServer

GREETING = Listed(
    models=(ModelInfo(name="a", aliases=("x",)),),
    is_greeting=True,
    workers=(WorkerReport(model="a", worker="a-1", phase=Phase.READY),),
)


@pytest.mark.parametrize(
    "line",
    [
        Order(verb=Verb.LOAD, model="a b"),
        Order(verb=Verb.RELOAD),
        GREETING,
        Listed(error="no\nway"),
        WorkerReport(model="ä", worker="w", phase=Phase.GONE, exit_code=-9, why="killed"),
        Subscribe(),
        WorkerOrder(id=1, verb=WorkerVerb.DRAIN, worker="h/a-1", force=True),
        RolloutOrder(
            id=2,
            config="/a.toml",
            options={"worker.n_ctx": 5, "worker.lora": ["a", "b"]},
            golden=(GoldenConfig(prompt="x"), GoldenConfig(prompt="y", answer="z\n")),
        ),
        FleetReport(
            processes=(ProcessReport(name="a-1", model="a", state="ready", retry_s=1),),
            rollout=RolloutReport(state=RolloutState.FAILED, why="it differs"),
        ),
    ],
)
def test_lines_read_back_to_the_same(line: Line) -> None:
    data = encode(line)
    assert data.count(b"\n") == 1
    assert decode(data) == line


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"kind":"no"}',
        b'{"kind":"order","verb":"dance"}',
        b'{"kind":"order","verb":"load","more":1}',
        b'{"kind":"models","models":[{"no":1}],"workers":[]}',
        b'{"kind":"worker","model":"m","worker":"w","phase":"odd"}',
        b'{"kind":"worker_order","id":"1","verb":"drain","worker":"w"}',
        b'{"kind":"worker_order","id":true,"verb":"drain","worker":"w"}',
        b'{"kind":"rollout","id":1,"options":[]}',
        b'{"kind":"rollout","id":1,"golden":[{"prompt":1}]}',
        b'{"kind":"fleet","processes":[1]}',
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ControlError):
        decode(data)


class Loop:
    """A server and the selector that the supervisor would turn."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control.sock"
        self.selector = selectors.DefaultSelector()
        self.server = ControlServer(self.path)
        self.server.open(self.selector, lambda: iter([GREETING]))

    def dial(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(5)
        peer.connect(str(self.path))
        self.turn()
        return peer

    def turn(self, timeout_s: float = 5) -> None:
        for key, _ in self.selector.select(timeout_s):
            key.data()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    one = Loop(tmp_path)
    yield one
    one.server.close()
    one.selector.close()


def test_a_connection_is_greeted_and_its_orders_are_taken_once(loop: Loop) -> None:
    with loop.dial() as peer:
        assert decode(peer.recv(4096)) == GREETING
        peer.sendall(b"rubbish\n" + encode(Order(verb=Verb.LOAD, model="a"))[:-5])
        loop.turn()
        assert loop.server.take() == []
        peer.sendall(encode(Order(verb=Verb.LOAD, model="a"))[-5:])
        loop.turn()
        assert [one.line for one in loop.server.take()] == [Order(verb=Verb.LOAD, model="a")]
        assert loop.server.take() == []


@pytest.mark.slow
def test_reports_are_sent_whole_also_when_nobody_reads_for_a_while(loop: Loop) -> None:
    report = WorkerReport(model="a", worker="w", phase=Phase.GONE, why="x" * 1000)
    with loop.dial() as peer:
        for _ in range(2000):
            loop.server.report(report)
        expected = len(encode(GREETING)) + 2000 * len(encode(report))
        n = 0
        while n < expected:
            n += len(peer.recv(1 << 20))
            loop.turn(0)
        loop.turn(0)
        assert n == expected


def test_every_gateway_has_its_connection(loop: Loop) -> None:
    with loop.dial() as one, loop.dial() as other:
        report = WorkerReport(model="a", worker="w", phase=Phase.READY)
        loop.server.report(report)
        for peer in (one, other):
            lines = peer.makefile("rb")
            assert [decode(lines.readline()) for _ in range(2)] == [GREETING, report]


def test_what_admins_want_to_know_goes_to_those_that_asked_for_it(loop: Loop) -> None:
    with loop.dial() as models, loop.dial() as admins:
        assert decode(admins.recv(4096)) == GREETING
        admins.sendall(encode(Subscribe()))
        loop.turn()
        ((line, peer),) = loop.server.take()
        assert line == Subscribe()
        assert loop.server.subscribers == [peer]
        loop.server.publish(FleetReport())
        loop.server.answer(peer, Reply(id=1, error="no"))
        assert admins.makefile("rb").readline() == encode(FleetReport())
        assert decode(models.recv(4096)) == GREETING
        models.setblocking(False)
        with pytest.raises(BlockingIOError):
            models.recv(1)
    loop.turn()
    loop.turn(0)
    assert loop.server.subscribers == []


def test_without_a_connection_reports_are_lost(loop: Loop) -> None:
    with loop.dial():
        pass
    loop.turn()
    assert repr(loop.server).startswith("<ControlServer connections=0")
    loop.server.report(GREETING)


def test_a_connection_without_a_descriptor_is_ended_and_wakes_nobody_again(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = socket.socket.accept
    n_fds = len(list(Path("/proc/self/fd").iterdir()))

    def accepted(sock: socket.socket) -> Any:
        if len(list(Path("/proc/self/fd").iterdir())) > n_fds:  # the peer's own, and the spare one
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(sock)

    with monkeypatch.context() as scarce:
        scarce.setattr(socket.socket, "accept", accepted)
        with loop.dial() as peer:
            assert peer.recv(1) == b""
            assert not loop.selector.select(0)
    with loop.dial() as peer:
        assert decode(peer.recv(4096)) == GREETING


def test_nobody_else_can_reach_it(loop: Loop) -> None:
    assert loop.path.stat().st_mode & 0o777 == 0o600


def test_a_path_that_cannot_be_is_named(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "no" / "control.sock")
    with selectors.DefaultSelector() as selector:
        with pytest.raises(ConfigError, match="cannot listen on"):
            server.open(selector, lambda: iter(()))
        server.close()
