"""The supervisor's end of the control channel: receives orders and sends reports, never blocks.

The socket is in the runtime directory, which only the user can enter. Each gateway has one
connection for models, if it loads them on demand, and one for what admins ask for.
"""

import contextlib
import errno
import logging
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from protocol.errors import ConfigError
from protocol.process.control import (
    MAX_LINE_BYTES,
    ControlError,
    Line,
    Subscribe,
    decode,
    encode,
)

logger = logging.getLogger("supervisor")

_READ_BYTES = 65536
"""Bytes read at once."""
_MAX_UNSENT = 2 * MAX_LINE_BYTES
"""A gateway that is so far behind does not read: its connection is closed."""


class ControlPeer:
    """One connection."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        sock.setblocking(False)
        self._sock: socket.socket | None = sock
        self._selector = selector
        self._unread = self._unsent = b""
        self.is_subscribed = False
        """Whether it is a connection for admins' orders."""

    @property
    def is_open(self) -> bool:
        """Whether lines reach the gateway."""
        return self._sock is not None

    def listen(self, serve: Callable[[], None]) -> None:
        """Call `serve` whenever there is something to read, or room for what is unsent."""
        if self._sock is None:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._sock)
        self._selector.register(self._sock, events, serve)

    def read(self) -> list[bytes]:
        """Return the whole lines that have come; closes the connection at its end."""
        if self._sock is None:
            return []
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        if not data or len(self._unread) > MAX_LINE_BYTES:
            self.close()
        return lines

    def send(self, data: bytes = b"") -> None:
        """Send as much as fits; the rest goes when there is room."""
        self._unsent += data
        while self._sock is not None and self._unsent:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                break
            except OSError:
                self.close()
        if len(self._unsent) > _MAX_UNSENT:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(sock)
            sock.close()
        self._unread = self._unsent = b""


class ControlOrder(NamedTuple):
    """A line of a gateway, and the connection that an answer goes to."""

    line: Line
    peer: ControlPeer


class ControlServer:
    """Listens at a path; `take` returns the orders that have come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._selector: selectors.BaseSelector | None = None
        self._spare_fd = -1
        """A descriptor to give up for a connection that there is none for: to accept and end it."""
        self._peers: list[ControlPeer] = []
        self._orders: list[ControlOrder] = []
        self._greet: Callable[[], Iterator[Line]] = lambda: iter(())

    def __repr__(self) -> str:
        return f"<ControlServer connections={len(self._peers)} {self._path}>"

    def open(self, selector: selectors.BaseSelector, greet: Callable[[], Iterator[Line]]) -> None:
        """Listen; `greet` gives the first lines of a connection. Raises `ConfigError`."""
        self._greet = greet
        self._selector = selector
        self._listener.setblocking(False)
        try:
            self._path.unlink(missing_ok=True)
            self._listener.bind(str(self._path))
            self._path.chmod(0o600)
            self._listener.listen(16)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._path}: {error}") from error
        self._spare_fd = _spare()
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Close the connections and the listening socket."""
        for peer in self._peers:
            peer.close()
        self._listener.close()
        self._free_spare()

    def take(self) -> list[ControlOrder]:
        """Return the received orders and clear the list."""
        orders, self._orders = self._orders, []
        return orders

    @property
    def subscribers(self) -> list[ControlPeer]:
        """Return the connections for admins' orders, the newest last."""
        return [peer for peer in self._peers if peer.is_subscribed]

    @property
    def gateways(self) -> list[ControlPeer]:
        """Return the connections for models, one of each gateway."""
        return [peer for peer in self._peers if peer.is_open and not peer.is_subscribed]

    def report(self, line: Line) -> None:
        """Send a line about models to all gateways; one that connects later gets all of it."""
        self._send(self.gateways, line)

    def publish(self, line: Line) -> None:
        """Send a line for admins to all gateways."""
        self._send(self.subscribers, line)

    def answer(self, peer: ControlPeer, line: Line) -> None:
        """Send a line over one connection."""
        self._send([peer], line)

    def _send(self, peers: list[ControlPeer], line: Line) -> None:
        data = encode(line)
        for peer in peers:
            peer.send(data)
            peer.listen(lambda peer=peer: self._serve(peer))  # type: ignore[misc]
        self._sweep()

    def _accept(self) -> None:
        assert self._selector is not None
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_away(error)
            return
        peer = ControlPeer(sock, self._selector)
        self._peers.append(peer)
        for line in self._greet():
            peer.send(encode(line))
        peer.listen(lambda: self._serve(peer))
        self._sweep()

    def _turn_away(self, error: OSError) -> None:
        """End a connection for which there is no descriptor: it would wake the loop for ever."""
        logger.error(
            "connection refused",
            extra={
                "file": self._path,
                "cause": error.strerror,
                "action": "the gateway tries again",
                "hint": "raise `ulimit -n` or LimitNOFILE=",
            },
        )
        self._free_spare()
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        self._spare_fd = _spare()

    def _free_spare(self) -> None:
        if self._spare_fd >= 0:
            os.close(self._spare_fd)
        self._spare_fd = -1

    def _serve(self, peer: ControlPeer) -> None:
        peer.send()
        for text in peer.read():
            self._receive(peer, text)
        peer.listen(lambda: self._serve(peer))
        self._sweep()

    def _sweep(self) -> None:
        self._peers = [peer for peer in self._peers if peer.is_open]

    def _receive(self, peer: ControlPeer, text: bytes) -> None:
        try:
            line = decode(text)
        except ControlError as error:
            logger.error(
                "control line unreadable", extra={"cause": error, "action": "the line is ignored"}
            )
            return
        if isinstance(line, Subscribe):
            peer.is_subscribed = True
        self._orders.append(ControlOrder(line, peer))


def _spare() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
