"""The supervisor's end of the control channel: receives orders and sends reports, never blocks.

The socket is in the runtime directory, which only the user can enter. There is one gateway; a
second connection replaces the first.
"""

import contextlib
import logging
import selectors
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from protocol.errors import ConfigError
from protocol.process.control import MAX_LINE_BYTES, ControlError, Line, Order, decode, encode

logger = logging.getLogger("supervisor")

_READ_BYTES = 65536


class ControlServer:
    """Listens at a path; `take` returns the orders that have come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._selector: selectors.BaseSelector | None = None
        self._peer: socket.socket | None = None
        self._unread = b""
        self._unsent = b""
        self._orders: list[Order] = []
        self._greet: Callable[[], Iterator[Line]] = lambda: iter(())

    def __repr__(self) -> str:
        return f"<ControlServer {'connected' if self._peer else 'alone'} {self._path}>"

    def open(self, selector: selectors.BaseSelector, greet: Callable[[], Iterator[Line]]) -> None:
        """Listen; `greet` gives the first lines of a connection. Raises `ConfigError`."""
        self._greet = greet
        self._selector = selector
        self._listener.setblocking(False)
        try:
            self._path.unlink(missing_ok=True)
            self._listener.bind(str(self._path))
            self._path.chmod(0o600)
            self._listener.listen(4)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._path}: {error}") from error
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Close the connection and the listening socket."""
        self._drop()
        self._listener.close()

    def take(self) -> list[Order]:
        """Return the received orders and clear the list."""
        orders, self._orders = self._orders, []
        return orders

    def report(self, line: Line) -> None:
        """Send a line; dropped without a gateway, because the next one gets the whole state."""
        if self._peer is None:
            return
        self._unsent += encode(line)
        self._flush()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        self._drop()
        peer.setblocking(False)
        self._peer = peer
        self._listen(selectors.EVENT_READ)
        for line in self._greet():
            self.report(line)

    def _listen(self, events: int) -> None:
        assert self._selector is not None
        assert self._peer is not None
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._peer)
        self._selector.register(self._peer, events, self._serve)

    def _serve(self) -> None:
        self._flush()
        self._read()

    def _read(self) -> None:
        if self._peer is None:
            return
        try:
            data = self._peer.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        if not data or len(self._unread) > MAX_LINE_BYTES:
            self._drop()
        for text in lines:
            self._obey(text)

    def _obey(self, text: bytes) -> None:
        try:
            line = decode(text)
        except ControlError as error:
            logger.error(
                "control line unreadable", extra={"cause": error, "action": "the line is ignored"}
            )
            return
        if isinstance(line, Order):
            self._orders.append(line)

    def _flush(self) -> None:
        if self._peer is None:
            return
        with contextlib.suppress(BlockingIOError):
            try:
                while self._unsent:
                    self._unsent = self._unsent[self._peer.send(self._unsent) :]
            except BlockingIOError:
                raise
            except OSError:
                self._drop()
                return
        is_behind = bool(self._unsent)
        self._listen(selectors.EVENT_READ | (selectors.EVENT_WRITE if is_behind else 0))

    def _drop(self) -> None:
        if self._peer is not None:
            assert self._selector is not None
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._peer)
            self._peer.close()
        self._peer = None
        self._unread = self._unsent = b""
