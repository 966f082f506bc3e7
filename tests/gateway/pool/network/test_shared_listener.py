"""Two gateways listen at one tcp endpoint; the newest gets what comes."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway.pool.network.shared_listener import can_share, listen
from protocol.endpoint import Endpoint, read_endpoint


@pytest.fixture
def open_all() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def free(host: str = "127.0.0.1") -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    return read_endpoint(f"tcp://{host}:{port}", "bind", is_bound=True)


def dial(listener: socket.socket, n: int, stack: ExitStack) -> None:
    for _ in range(n):
        stack.enter_context(socket.create_connection(listener.getsockname()[:2]))


def n_accepted(sock: socket.socket) -> int:
    n = 0
    while True:
        try:
            sock.accept()[0].close()
        except BlockingIOError:
            return n
        n += 1


@pytest.mark.parametrize("host", ["127.0.0.1", "*", "0.0.0.0", "lo"])
def test_whoever_joins_last_gets_all_that_comes(open_all: ExitStack, host: str) -> None:
    endpoint = free(host)
    first = open_all.enter_context(listen(endpoint, joins=False))
    dial(first, 3, open_all)
    second = open_all.enter_context(listen(endpoint, joins=True))
    dial(first, 8, open_all)
    third = open_all.enter_context(listen(endpoint, joins=True))
    dial(first, 9, open_all)
    assert [n_accepted(one) for one in (first, second, third)] == [3, 8, 9]


def test_a_port_of_another_address_does_not_count(open_all: ExitStack) -> None:
    endpoint = free()
    other = read_endpoint(f"tcp://127.0.0.2:{endpoint.port}", "bind", is_bound=True)
    open_all.enter_context(listen(other, joins=False))
    open_all.enter_context(listen(endpoint, joins=False))
    last = open_all.enter_context(listen(endpoint, joins=True))
    dial(last, 8, open_all)
    assert n_accepted(last) == 8


def test_who_is_left_gets_what_comes(open_all: ExitStack) -> None:
    endpoint = free()
    first = listen(endpoint, joins=False)
    second = open_all.enter_context(listen(endpoint, joins=True))
    first.close()
    dial(second, 5, open_all)
    assert n_accepted(second) == 5


def test_who_does_not_join_needs_the_endpoint_for_itself(open_all: ExitStack) -> None:
    endpoint = free()
    open_all.enter_context(listen(endpoint, joins=False))
    with pytest.raises(OSError, match="in use"):
        listen(endpoint, joins=False)


def test_only_a_fixed_port_of_tcp_can_be_shared() -> None:
    assert can_share(free())
    for text in ("tcp://127.0.0.1:*", "ipc:///run/workers.sock"):
        assert not can_share(read_endpoint(text, "bind", is_bound=True))
