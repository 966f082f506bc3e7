"""The TCP or Unix socket behind a worker's frames, so that one connection can be cut.

ZeroMQ hides its connections, and a ROUTER cannot hang up on one peer. But each frame names the
descriptor it came through, and shutting that down ends the connection. The descriptor may have been
closed and given to another connection meanwhile, such as a client's from the same host. So it is
compared with the peer of the frame and with the ports that workers dial, and at cutting with the
inode of the socket that it was.
"""

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

import zmq

_LOCAL = "localhost:"
"""How libzmq begins the address of a Unix peer: localhost:UID:GID:PID."""


@dataclass(frozen=True, slots=True)
class PeerSocket:
    """One connected socket of the gateway's ROUTER."""

    fd: int
    inode: int

    def cut(self) -> None:
        """End the connection; does nothing if it has ended already."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.fd)) as sock:
            if os.fstat(sock.fileno()).st_ino == self.inode:
                sock.shutdown(socket.SHUT_RDWR)


def key_of(frame: zmq.Frame) -> str:
    """Return the public key of the sender, as ZAP reports it; empty for a Unix socket."""
    # Asking a Unix peer's frame for its user raises, which takes six times as long.
    if address_of(frame).startswith(_LOCAL):
        return ""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return "?"  # ZAP has named no key, so it is not authorised


def address_of(frame: zmq.Frame) -> str:
    """Return the sender's IP address, or `localhost:UID:GID:PID` for a Unix socket."""
    return str(frame.get("Peer-Address"))


def pid_of(frame: zmq.Frame) -> int:
    """Return the sender's process id, as the kernel reports it; 0 unless it is on this host."""
    address = address_of(frame)
    tail = address.rpartition(":")[2]
    return int(tail) if address.startswith(_LOCAL) and tail.isdecimal() else 0


def socket_of(frame: zmq.Frame, ports: Collection[int]) -> PeerSocket | None:
    """Find the socket that a frame came through; None if it is closed already.

    `ports` are those of the tcp endpoints that workers dial.
    """
    try:
        fd = int(frame.get(zmq.SRCFD))
        with socket.socket(fileno=os.dup(fd)) as sock:
            if _address(sock) != _normal(address_of(frame)):
                return None
            if sock.family != socket.AF_UNIX and sock.getsockname()[1] not in ports:
                return None
            return PeerSocket(fd, os.fstat(sock.fileno()).st_ino)
    except (OSError, zmq.ZMQError):
        return None


def peer_address(fd: int) -> str:
    """Return the address of a connection by its descriptor; empty if it has ended."""
    try:
        with socket.socket(fileno=os.dup(fd)) as sock:
            return _address(sock)
    except OSError:
        return ""


def _address(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        size = struct.calcsize("3i")
        pid, uid, gid = struct.unpack(
            "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )
        return f"{_LOCAL}{uid}:{gid}:{pid}"
    return _normal(sock.getpeername()[0])


def _normal(address: str) -> str:
    """Write an IPv4 address that came through an IPv6 socket as the IPv4 address it is."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
