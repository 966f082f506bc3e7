"""Endpoints: what is taken, and what is refused with a reason."""

import pytest

from protocol.endpoint import Endpoint, bound, dialled, gateway_endpoint, read_endpoint
from protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port", "takes_ipv6"),
    [
        ("ipc:///run/x/workers.sock", "", 0, False),
        ("ipc://relative", "", 0, False),
        ("tcp://10.0.0.1:5555", "10.0.0.1", 5555, False),
        ("tcp://[fd00::1]:5555", "fd00::1", 5555, True),
        ("tcp://[::]:5555", "::", 5555, True),
        ("tcp://*:5555", "*", 5555, True),
        ("tcp://0.0.0.0:5555", "0.0.0.0", 5555, False),
        ("tcp://eth0:*", "eth0", 0, True),
        ("tcp://gw-1.example.org:65535", "gw-1.example.org", 65535, True),
    ],
)
def test_an_endpoint_has_its_parts(text: str, host: str, port: int, takes_ipv6: bool) -> None:
    found = read_endpoint(text, "bind", is_bound=True)
    assert found == Endpoint(text, host, port)
    assert (found.is_tcp, found.takes_ipv6) == (bool(host), takes_ipv6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be ipc://PATH, tcp://HOST:PORT"),
        ("ipc://", "must be ipc://PATH"),
        ("ipc://@workers", "any user can reach an abstract socket"),
        ("ipc://" + "x" * 108, "longer than the 107 bytes"),
        ("inproc://x", "must be"),
        ("tcp://", "must be"),
        ("tcp://10.0.0.1", "must be"),
        ("tcp://10.0.0.1:", "must be"),
        ("tcp://10.0.0.1:x", "must be"),
        ("tcp://10.0.0.1:65536", "the port must be 1 to 65535"),
        ("tcp://10.0.0.1:-1", "must be"),
        ("tcp://fd00::1:5555", "must be"),
        ("tcp://[fd00::1::]:5555", "At most one '::'"),
        ("tcp://[1.2.3.4]:5555", "At least 3 parts"),
        ("tcp://10.0.0.1:1;10.0.0.2:2", "must be"),
        ("tcp://a b:1", "must be"),
        ("TCP://10.0.0.1:1", "must be"),
        ("udp://10.0.0.1:1", "must be"),
        ("ipc:///tmp/\udcff", "is no UTF-8 text"),
    ],
)
@pytest.mark.parametrize("is_bound", [False, True])
def test_what_is_no_endpoint_is_named(text: str, reason: str, is_bound: bool) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read_endpoint(text, "bind", is_bound=is_bound)
    assert str(caught.value).startswith(f"bind '{text}'")


@pytest.mark.parametrize("text", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://[::]:5555"])
def test_nobody_can_dial_every_address(text: str) -> None:
    with pytest.raises(ConfigError, match="name the gateway's address"):
        read_endpoint(text, "connect", is_bound=False)


@pytest.mark.parametrize("text", ["tcp://h:0", "tcp://h:*"])
def test_only_a_listener_may_leave_its_port_open(text: str) -> None:
    assert read_endpoint(text, "bind", is_bound=True).port == 0
    with pytest.raises(ConfigError, match="the port must be 1 to 65535"):
        read_endpoint(text, "connect", is_bound=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "*", "0.0.0.0", "[::1]"])
def test_tcp_needs_keys_whatever_the_address(host: str) -> None:
    with pytest.raises(ConfigError, match=r"tcp needs keys.*--gateway-curve-key"):
        bound(["ipc://a", f"tcp://{host}:1"], has_keys=False)
    assert len(bound(["ipc://a", f"tcp://{host}:1"], has_keys=True)) == 2


def test_a_worker_is_told_which_keys_it_lacks() -> None:
    with pytest.raises(ConfigError, match=r"tcp needs keys.*--worker-curve-key.*--gateway-keys"):
        dialled(["tcp://h:1"], has_keys=False)
    assert dialled(["ipc://a"], has_keys=False) == (Endpoint("ipc://a"),)


@pytest.mark.parametrize(
    ("index", "endpoint", "own"),
    [
        (0, "ipc:///run/x/workers.sock", "ipc:///run/x/workers.sock"),
        (2, "ipc:///run/x/workers.sock", "ipc:///run/x/workers-2.sock"),
        (0, "tcp://10.0.0.1:*", "tcp://10.0.0.1:*"),
        (2, "tcp://10.0.0.1:7000", "tcp://10.0.0.1:7002"),
        (1, "tcp://[::1]:7000", "tcp://[::1]:7001"),
    ],
)
def test_each_of_several_gateways_has_an_endpoint_of_its_own(
    index: int, endpoint: str, own: str
) -> None:
    assert gateway_endpoint(endpoint, index) == own


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.1:*", "tcp://10.0.0.1:65535", "inproc://x"])
def test_an_endpoint_without_a_path_or_a_port_is_for_one_gateway(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="several gateways need a path or a port each"):
        gateway_endpoint(endpoint, 1)
