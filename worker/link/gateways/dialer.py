"""How a worker dials a gateway: socket options, keys, and the waits between its attempts."""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from protocol.curve import public_files, read_public, read_secret
from protocol.endpoint import Endpoint, dialled
from protocol.errors import ConfigError

logger = logging.getLogger(__name__)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.25, 8.0
"""Seconds before a gateway on another host is dialled again: doubled from the first to the last."""
_JITTER = 0.25
"""Random share by which a wait differs, so that the workers of a fleet do not dial all at once."""
_LONGEST_LOCAL_WAIT_S = 1.0
"""The longest such wait on this host, where dialling costs little."""
_CONNECT_MS = 3000
"""Milliseconds for a TCP connection; the kernel sends a lost packet again after 1 and 3 s."""
_UNACKNOWLEDGED_MS = 4000
"""Maximum time without an acknowledgement of a TCP peer. A slow peer still acknowledges."""
_LARGE_MESSAGE_MS = 30_000
"""Maximum time for a message to arrive whole, because a heartbeat cannot overtake it."""


@dataclass(frozen=True, slots=True)
class CurveFiles:
    """Where a worker finds its own secret key and the public keys of its gateways."""

    secret: Path
    gateways: tuple[Path, ...]
    """Files, and folders of `.pub` files."""


@dataclass(slots=True)
class GatewayDialer:
    """Attempts to reach one gateway. Keys are read at each of them, so they may be replaced."""

    endpoint: Endpoint
    files: CurveFiles | None = None
    chance: Callable[[], float] = field(default=random.random, repr=False)
    """A number from 0 to 1."""
    n_failed: int = 0
    """Attempts since the gateway last answered."""
    _secret: str = field(default="", repr=False)
    _servers: tuple[str, ...] = ()
    _server: str = ""
    """The gateway's key of the last attempt."""
    _is_right: bool = False
    """The gateway has answered to that key since it was dialled."""
    _n_refused: int = 0
    """Keys to which it has not answered, one after the other."""

    def prepare(self, socket: "zmq.Socket[bytes]") -> None:
        """Set the socket's options before it connects; raises `ConfigError` without any key."""
        if not self.endpoint.is_tcp:
            self._set(socket, first_ms=50, longest_ms=1000, silence_ms=3000)
            return
        self._read_keys()
        self._set(
            socket,
            first_ms=round(_FIRST_WAIT_S * 1e3),
            longest_ms=round(_LONGEST_WAIT_S * 1e3),
            silence_ms=_LARGE_MESSAGE_MS,
        )
        socket.setsockopt(zmq.IPV6, self.endpoint.takes_ipv6)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        socket.setsockopt(zmq.TCP_MAXRT, _UNACKNOWLEDGED_MS)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self._server.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(self._secret.encode()))
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret.encode())

    def failed(self) -> float:
        """Note that an attempt failed or that the connection was lost; return seconds to wait.

        Each gateway key has its turn before the waits become longer. One that was right is tried
        again first: the gateway was restarted, or the network was away.
        """
        self.n_failed += 1
        if self._is_right:
            self._is_right = False
        elif self._server in self._servers:
            self._n_refused += 1
            at = self._servers.index(self._server) + 1
            self._server = self._servers[at % len(self._servers)]
        n = (self.n_failed - 1) // max(1, len(self._servers))
        if not self.endpoint.is_tcp:
            return 0.0 if n == 0 else min(0.05 * 2.0 ** min(n, 8), _LONGEST_LOCAL_WAIT_S)
        wait_s = min(_FIRST_WAIT_S * 2.0 ** min(n, 8), _LONGEST_WAIT_S)
        return wait_s * (1 - _JITTER + 2 * _JITTER * self.chance())

    def welcomed(self) -> None:
        """Note that the gateway has answered: the key is right, and the waits are short again."""
        self.n_failed = self._n_refused = 0
        self._is_right = True

    @property
    def has_untried_keys(self) -> bool:
        """Whether the next attempt has a key that the gateway was not tried with."""
        return self._n_refused + 1 < len(self._servers)

    def _set(
        self, socket: "zmq.Socket[bytes]", *, first_ms: int, longest_ms: int, silence_ms: int
    ) -> None:
        socket.setsockopt(zmq.RECONNECT_IVL, first_ms)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, longest_ms)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, silence_ms)

    def _read_keys(self) -> None:
        """Read the key files; if one is unreadable, keep all keys that were read before, if any."""
        assert self.files is not None  # `open_dialer` has checked it
        file = self.files.secret
        try:
            secret = read_secret(file)
            paths: list[Path] = []
            for file in self.files.gateways:
                paths += public_files(file)
            # A file that is named for the gateway's host is tried first.
            paths.sort(key=lambda path: path.stem != self.endpoint.host)
            keys: dict[str, None] = {}
            for file in paths:
                keys[read_public(file).key] = None
            if not keys:
                file = self.files.gateways[0]
                raise ConfigError(f"{file}: holds no .pub file of a gateway")
        except ConfigError as error:
            if not self._servers:
                raise
            logger.warning(
                "key file unreadable",
                extra={
                    "file": file,
                    "cause": error,
                    "action": "the keys that were read last stay valid",
                },
            )
            return
        self._secret, self._servers = secret, tuple(keys)
        if self._server not in keys:
            self._server = self._servers[0]


def open_dialer(endpoint: str, files: CurveFiles | None) -> GatewayDialer:
    """Make the dialer of an endpoint; raises `ConfigError` for tcp without keys."""
    (parsed,) = dialled([endpoint], has_keys=files is not None)
    return GatewayDialer(parsed, files)
