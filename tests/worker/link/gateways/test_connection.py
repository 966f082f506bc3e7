"""The worker's end of the wire: what it sends, and what it logs of gateways that do not answer."""

import logging
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from protocol.curve import public_text, secret_text
from protocol.errors import ErrorCode
from protocol.wire import messages as m
from tests.worker.router import Gateway
from worker.link.gateways.connection import GatewayConnection
from worker.link.gateways.dialer import CurveFiles


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[GatewayConnection, Gateway]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = f"ipc://{tmp_path}/w.sock"
    gateway = Gateway(context, endpoint)
    connection = GatewayConnection(context, endpoint, "w:1")
    connection.open()
    yield connection, gateway
    connection.close()
    gateway.close()
    context.term()


def heard(gateway: Gateway, n: int) -> list[m.FrameItem]:
    while len(gateway.heard) < n:
        assert gateway.poll(5000), gateway.heard
    return gateway.heard


def test_a_message_that_cannot_be_sent_ends_its_task(
    ends: tuple[GatewayConnection, Gateway],
) -> None:
    connection, gateway = ends
    good = m.Envelope(m.TaskKey(1), m.Delta(text="a", tokens=(1,), n_predicted=1))
    bad = m.Envelope(m.TaskKey(2), m.Delta(text="\ud800", tokens=(2**70,), n_predicted=1))
    assert connection.send([good, bad]) == [m.TaskKey(2)]
    assert connection.send([good, m.Envelope(m.TaskKey(2), m.Delta(text="more"))]) == ()
    done = [m.Envelope(m.TaskKey(one), m.Done(finish=m.Finish.LIMIT)) for one in (1, 2)]
    connection.send(done)
    failed = heard(gateway, 4)[1]
    assert isinstance(failed, m.Envelope) and failed.task == m.TaskKey(2)
    assert isinstance(failed.payload, m.Failed)
    assert failed.payload.code is ErrorCode.INVALID_REQUEST
    assert gateway.heard == [good, failed, good, done[0]]
    connection.send(
        [m.Envelope(m.TaskKey(2, 1), m.Delta(text="b"))]
    )  # another attempt is another matter
    assert heard(gateway, 5)[-1] == m.Envelope(m.TaskKey(2, 1), m.Delta(text="b"))


def test_a_terminal_that_cannot_be_sent_is_replaced(
    ends: tuple[GatewayConnection, Gateway],
) -> None:
    connection, gateway = ends
    bad = m.Envelope(m.TaskKey(3), m.Detokenized(content="\udfff"))
    assert connection.send([bad]) == [m.TaskKey(3)]
    (failed,) = heard(gateway, 1)
    assert isinstance(failed, m.Envelope) and failed.task == m.TaskKey(3)
    assert isinstance(failed.payload, m.Failed)
    connection.send([m.Envelope(m.TaskKey(3), m.Detokenized(content="x"))])
    assert heard(gateway, 2)[1] == m.Envelope(m.TaskKey(3), m.Detokenized(content="x"))


def test_a_handshake_on_this_host_is_blamed_on_no_key_and_only_when_it_fails_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "w.sock"
    with (
        zmq.Context() as context,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dying,
    ):
        dying.bind(str(path))
        dying.listen()
        connection = GatewayConnection(context, f"ipc://{path}", "w:1")
        for n_lines in (0, 0, 1, 1):
            connection.open()
            dying.accept()[0].close()
            while not connection.was_dropped():
                pass
            connection.lost()
            assert len(caplog.messages) == n_lines
    (record,) = caplog.records
    assert "key" not in vars(record)["cause"] + vars(record)["hint"]


def test_a_gateway_that_does_not_answer_is_logged_once_a_minute(
    ends: tuple[GatewayConnection, Gateway],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, gateway = ends
    caplog.set_level(logging.INFO)
    start = time.monotonic()
    for after_s, n_lines in ((5, 0), (11, 1), (12, 1), (70, 1), (72, 2)):
        monkeypatch.setattr(time, "monotonic", lambda after_s=after_s: start + after_s)
        connection.tell_away()
        assert caplog.messages == ["gateway not reached"] * n_lines
    (first, _) = caplog.records
    assert vars(first)["url"] == gateway.endpoint
    connection.welcomed()
    connection.tell_away()
    assert caplog.messages[2:] == ["gateway reached"]


def test_a_key_of_another_gateway_is_no_fault_while_there_are_more_to_try(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    public, secret = zmq.curve_keypair()
    (tmp_path / "w.key").write_text(secret_text(zmq.curve_keypair()[1].decode()))
    keys = [zmq.curve_keypair()[0], zmq.curve_keypair()[0], public]
    for name, key in zip("abc", keys, strict=True):
        (tmp_path / f"{name}.pub").write_text(public_text(key.decode()))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, secret)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        files = CurveFiles(tmp_path / "w.key", (tmp_path,))
        connection = GatewayConnection(context, f"tcp://127.0.0.1:{port}", "w:1", keys=files)
        for _ in keys[:2]:
            connection.open()
            while not connection.was_dropped():
                pass
            connection.lost()
        connection.open()
        connection.send([m.Ping()])
        assert router.poll(5000)
        connection.close()
    assert caplog.messages == []


class Relay:
    """Carries one connection to a port, whenever it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._ends: list[socket.socket] = []
        self.damages = False
        """Flip a bit of all that comes back."""

    def carry(self) -> None:
        if not self._ends:
            far = socket.create_connection(("127.0.0.1", self._port))
            self._ends = [self._server.accept()[0], far]
        near, far = self._ends
        for end in select.select(self._ends, [], [], 0.01)[0]:
            data = end.recv(1 << 16)
            if self.damages and end is far:
                data = data[:-1] + bytes([data[-1] ^ 1])
            (near if end is far else far).sendall(data)

    def close(self) -> None:
        for end in (*self._ends, self._server):
            end.close()


def test_a_damaged_message_is_blamed_on_the_way_and_not_on_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    public, secret = zmq.curve_keypair()
    (tmp_path / "w.key").write_text(secret_text(zmq.curve_keypair()[1].decode()))
    (tmp_path / "gateway.pub").write_text(public_text(public.decode()))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, secret)
        relay = Relay(router.bind_to_random_port("tcp://127.0.0.1"))
        files = CurveFiles(tmp_path / "w.key", (tmp_path / "gateway.pub",))
        connection = GatewayConnection(context, f"tcp://127.0.0.1:{relay.port}", "w:1", keys=files)
        connection.open()
        connection.send([m.Ping()])
        while not router.poll(0):
            relay.carry()
        connection.welcomed()
        relay.damages = True
        router.send_multipart([router.recv_multipart()[0], b"anything"])
        while not connection.was_dropped():
            relay.carry()
        connection.close()
        relay.close()
    (record,) = caplog.records
    assert vars(record)["cause"] == "a message of the gateway was damaged on the way"
