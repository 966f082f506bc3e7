"""A listening tcp socket that two gateways may have at once, while one takes over from the other.

The sockets of one address form a group of SO_REUSEPORT. A filter of one instruction lets the kernel
give every new connection to the newest of them, as soon as it listens; the others keep theirs. Once
the number of sockets has changed, the kernel chooses by chance: then a gateway that has stepped
aside cuts what comes to it, and the worker dials again.
"""

import contextlib
import ctypes
import os
import socket
import struct
from pathlib import Path

import zmq

from protocol.endpoint import Endpoint

_SO_ATTACH_REUSEPORT_CBPF = 51
_BPF_RET_CONSTANT = 0x06
"""Linux's socket option and its filter's instruction (asm-generic/socket.h, linux/filter.h)."""
_LOCAL, _STATE, _INODE, _LISTENS = 1, 3, 9, "0A"
"""Columns of `/proc/net/tcp`, and the state of a socket that listens."""
BACKLOG = 1024
"""Connections of workers that may wait to be accepted."""


def can_share(endpoint: Endpoint) -> bool:
    """Whether it is a tcp endpoint with a fixed port."""
    return endpoint.is_tcp and endpoint.port > 0


def listen(endpoint: Endpoint, *, joins: bool) -> socket.socket:
    """Listen at a tcp endpoint; raises `OSError`.

    With `joins` another gateway of this pool may listen there; without, an address that is in use
    is refused.
    """
    family, address = _address(endpoint)
    if not joins:
        with socket.socket(family) as probe:
            _bind(probe, address)
            probe.listen(1)
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bind(sock, address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        if joins:
            _take_all(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind(sock: socket.socket, address: tuple[str, int]) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind(address)


def _address(endpoint: Endpoint) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return what to bind, as ZeroMQ reads the host: an address, an interface or `*`."""
    host = endpoint.host
    if host == "*":
        host = "::" if socket.has_ipv6 else "0.0.0.0"  # noqa: S104 - it is what was asked for
    with contextlib.suppress(OSError):
        socket.inet_pton(socket.AF_INET, host)
        return socket.AF_INET, (host, endpoint.port)
    with contextlib.suppress(OSError):
        socket.inet_pton(socket.AF_INET6, host)
        return socket.AF_INET6, (host, endpoint.port)
    return _address_of_interface(endpoint)


def _address_of_interface(endpoint: Endpoint) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Ask ZeroMQ which address an interface has; raises `zmq.ZMQError`, an `OSError`'s cousin."""
    with zmq.Context() as context, context.socket(zmq.PULL) as probe:
        probe.setsockopt(zmq.IPV6, endpoint.takes_ipv6)
        probe.bind(f"tcp://{endpoint.host}:*")
        found = probe.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
    host = found.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return family, (host, endpoint.port)


def _take_all(sock: socket.socket) -> None:
    """Let the kernel give this socket, the last of its group, what comes from now on."""
    with contextlib.suppress(OSError):  # another system: it chooses by chance
        last = max(0, _n_listening(sock) - 1)
        code = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RET_CONSTANT, 0, 0, last))
        program = struct.pack("@HP", 1, ctypes.addressof(code))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)


def _n_listening(sock: socket.socket) -> int:
    """Count the sockets of this host that listen where this one does; raises `OSError`."""
    name = "tcp6" if sock.family == socket.AF_INET6 else "tcp"
    rows = [line.split() for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    inode = str(os.fstat(sock.fileno()).st_ino)
    own = next((row[_LOCAL] for row in rows if row[_INODE] == inode), "")
    return sum(row[_LOCAL] == own and row[_STATE] == _LISTENS for row in rows)
