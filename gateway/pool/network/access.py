"""Decides who may connect: ZAP over tcp, the names of keys, and peers that are blocked for a while.

ZAP runs per ZeroMQ context and asks for every CURVE handshake, before any frame of the peer is
read. Unix sockets are not asked for: the permissions of their folder guard them.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator

from gateway.pool.network.authorized_keys import AuthorizedKeys
from gateway.pool.network.bad_frames import (
    BLOCKED_S,
    MAX_SLOW_S,
    MAX_UNACCEPTED,
    MAX_UNREADABLE,
    WINDOW_S,
    BadFrames,
)
from gateway.pool.network.failed_handshakes import FailedHandshakes
from gateway.pool.network.shared_listener import BACKLOG
from protocol.curve import PUBLIC_SUFFIX, is_exposed, read_secret
from protocol.endpoint import Endpoint
from protocol.errors import ConfigError

logger = logging.getLogger(__name__)

_DOMAIN = "llamapool"
_REFRESH_S = 1.0
"""Seconds between two looks at the folder of keys."""
_HANDSHAKE_MS = 10_000
"""Milliseconds for a CURVE handshake; slow networks take some hundred."""


class _Authenticator(AsyncioAuthenticator):
    """Answers ZAP; outlives whatever goes wrong in one answer."""

    address = ""
    """Of the peer that is asked for."""

    async def handle_zap_message(self, msg: list[bytes]) -> None:
        self.address = msg[3].decode(errors="replace")
        try:
            await super().handle_zap_message(msg)
        except Exception:
            logger.exception(
                "unexpected exception", extra={"place": "zap", "action": "the handshake fails"}
            )


class PeerAccess:
    """The keys of this gateway and of its workers; without keys there is no tcp."""

    def __init__(
        self, key_file: str, worker_keys: str, count_failure: Callable[[str], None]
    ) -> None:
        self._key_file = Path(key_file)
        self.has_keys = bool(key_file and worker_keys)
        self.handshakes = FailedHandshakes(count_failure)
        self._keys = AuthorizedKeys(Path(worker_keys))
        self._bad_frames = BadFrames()
        self._secret = ""
        self._zap: _Authenticator | None = None
        self._look_at = 0.0
        self._has_changed = False

    def read(self) -> None:
        """Read the keys; raises `ConfigError` that names the file at fault."""
        self._secret = read_secret(self._key_file)
        _check_pair(self._key_file, self._secret)
        self._keys.read()
        if not len(self._keys):
            logger.warning(
                "no worker key",
                extra={
                    "file": self._keys.folder,
                    "action": "no worker can connect over tcp",
                    "hint": f"put the workers' {PUBLIC_SUFFIX} files there",
                },
            )
        if is_exposed(self._key_file):
            logger.warning(
                "secret key readable by others",
                extra={"file": self._key_file, "hint": "chmod 600"},
            )

    def open(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        """Answer ZAP in this context."""
        self._zap = _Authenticator(context, log=logging.getLogger(f"{__name__}.zap"))
        self._zap.configure_curve_callback(_DOMAIN, self)
        self._zap.start()

    def close(self) -> None:
        """Stop answering handshakes."""
        if self._zap is not None:
            self._zap.stop()
            self._zap = None

    def secure(self, socket: "zmq.Socket[bytes]", endpoint: Endpoint) -> None:
        """Set what the next `bind` of the socket takes over: keys for tcp, none for ipc."""
        socket.setsockopt(zmq.CURVE_SERVER, endpoint.is_tcp)
        if endpoint.is_tcp:
            socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret.encode())
            socket.setsockopt(zmq.IPV6, endpoint.takes_ipv6)
            socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
            socket.setsockopt(zmq.BACKLOG, BACKLOG)

    def callback(self, domain: str, key: bytes) -> bool:
        """Tell ZAP whether a key may connect."""
        now = asyncio.get_running_loop().time()
        text = key.decode()
        if self._keys.get(text) is None:
            self._look(now)  # its file may have come a moment ago
        if self.admits(text, now):
            return True
        is_known = self._keys.get(text) is not None
        cause = "its key is blocked" if is_known else f"its key is not authorised: {text}"
        address = self._zap.address if self._zap is not None else ""
        self.handshakes.failed(address, "blocked" if is_known else "unknown_key", cause, now)
        return False

    def admits(self, key: str, now: float) -> bool:
        """Whether frames of this key are read; the key of a Unix socket is empty."""
        if not key:
            return True
        return self._keys.get(key) is not None and not self._bad_frames.is_blocked(key, now)

    def is_blocked(self, who: str, now: float) -> bool:
        """Whether a key, or without one a name, is blocked for what it has sent."""
        return self._bad_frames.is_blocked(who, now)

    def name_refusal(self, key: str, name: str) -> str:
        """Return why a worker with this key may not have this name; empty if it may."""
        known = self._keys.get(key)
        if known is None or known.accepts(name):
            return ""
        return f"the key {known.path.name} is not for a worker named {name!r}"

    def sent_unreadable(self, who: str, now: float) -> bool:
        """Count a frame that could not be read; return whether its sender is blocked by now."""
        if self._bad_frames.is_blocked(who, now):
            return True
        is_blocked = self._bad_frames.count_unreadable(who, now)
        if is_blocked:
            self._tell_blocked(
                who, f"sent {MAX_UNREADABLE} unreadable frames within {WINDOW_S:g} s"
            )
        return is_blocked

    def sent_unaccepted(self, who: str, now: float) -> bool:
        """Count a frame of a connection that was not accepted; return whether to cut it."""
        if self._bad_frames.is_blocked(who, now):
            return True
        is_blocked = self._bad_frames.count_unaccepted(who, now)
        if is_blocked:
            cause = f"sent {MAX_UNACCEPTED} frames within {WINDOW_S:g} s on unaccepted connections"
            self._tell_blocked(who, cause)
        return is_blocked

    def sent_slow(self, who: str, seconds: float, now: float) -> bool:
        """Count the time that reading a frame has taken; return whether its sender is blocked."""
        is_blocked = self._bad_frames.count_slow(who, seconds, now)
        if is_blocked:
            self._tell_blocked(who, f"its frames took more than {MAX_SLOW_S:g} s to read")
        return is_blocked

    def block(self, who: str, cause: str, now: float) -> None:
        """Block a peer for what it does."""
        self._bad_frames.block(who, now)
        self._tell_blocked(who, cause)

    def _tell_blocked(self, who: str, cause: str) -> None:
        known = self._keys.get(who)
        logger.error(
            "peer blocked",
            extra={
                "identity": known.path.name if known is not None else who[:64],
                "cause": cause,
                "retry_s": BLOCKED_S,
                "action": "it cannot connect for that time",
                "hint": f"use one release on both sides; remove the {PUBLIC_SUFFIX} of a stranger",
            },
        )

    def refresh(self, now: float) -> bool:
        """Read the keys again if they have changed; return whether they had since the last call."""
        self._look(now)
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def _look(self, now: float) -> None:
        if self._zap is None or now < self._look_at:
            return
        self._look_at = now + _REFRESH_S
        if self._keys.refresh():
            self._has_changed = True
            logger.info("worker keys read", extra={"n_keys": len(self._keys)})


def _check_pair(path: Path, secret: str) -> None:
    try:
        zmq.curve_public(secret.encode())
    except zmq.ZMQError as error:
        raise ConfigError(f"{path}: is no key of CURVE: {error.strerror}") from error
