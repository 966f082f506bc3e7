"""The connection behind a frame is cut, and never another one that has got its descriptor."""

import socket
from typing import cast

import pytest
import zmq

from gateway.pool.network.peer_socket import socket_of


class Frame:
    """What ZeroMQ says of a frame: descriptor and address of its peer."""

    def __init__(self, fd: int, address: str) -> None:
        self._known: dict[object, object] = {zmq.SRCFD: fd, "Peer-Address": address}

    def get(self, name: object) -> object:
        return self._known[name]


def frame(fd: int, address: str = "127.0.0.1") -> zmq.Frame:
    return cast(zmq.Frame, Frame(fd, address))


@pytest.mark.parametrize("is_of_workers", [True, False])
def test_a_client_of_the_same_host_is_not_cut_for_a_worker(is_of_workers: bool) -> None:
    """Its connection may have the descriptor of a worker's that has ended."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        port = listener.getsockname()[1]
        found = socket_of(frame(accepted.fileno()), {port if is_of_workers else 1})
        assert (found is not None) is is_of_workers
        if found is not None:
            found.cut()
            assert client.recv(1) == b""


def test_a_descriptor_of_another_peer_or_of_nothing_is_none() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        ports = {listener.getsockname()[1]}
        assert socket_of(frame(accepted.fileno(), "10.0.0.1"), ports) is None
        fd = accepted.fileno()
    assert socket_of(frame(fd), ports) is None
