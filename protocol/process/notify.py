"""sd_notify: reports readiness, state and progress to the process that started this one.

systemd and our supervisor both listen on a datagram socket that `NOTIFY_SOCKET` names. Where nobody
listens, in a container, `LLAMAPOOL_STATE_FILE` names a file for probes: it holds `starting`,
`ready` or `stopping`, and is touched with each sign of progress. Without either calls do nothing.
Calls never block and never raise. A listener's socket holds ten datagrams on most systems
(`net.unix.max_dgram_qlen`): what finds it full is kept, the newest of each kind, and sent by the
next call or by `flush`.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

STATE_VARIABLE = "LLAMAPOOL_STATE_FILE"
"""Environment variable that names the file for probes; it belongs to one process."""

_CLOSE_S = 0.5
"""Longest wait of a process that ends for a listener that reads nothing."""


class Notifier:
    """The sending end; safe to use from several threads."""

    def __init__(
        self,
        sock: socket.socket | None,
        address: str,
        watchdog_s: float | None,
        state: Path | None = None,
    ) -> None:
        self._socket = sock
        self._address = address
        self._state_file = state
        self._state = "starting"
        self._lock = threading.Lock()
        self._unsent: dict[tuple[str, ...], bytes] = {}
        """Datagrams that the listener had no room for, by the names of their fields, in order."""
        self.watchdog_interval_s = None if watchdog_s is None else watchdog_s / 2
        """Interval of `watchdog`: half of the listener's limit; None without one."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Open the socket that `NOTIFY_SOCKET` names; a path, or `@name` in the abstract space."""
        env = os.environ if environ is None else environ
        path = env.get("NOTIFY_SOCKET", "")
        if not path.startswith(("/", "@")):
            file = env.get(STATE_VARIABLE, "")
            if not file:
                return cls(None, "", None)
            found = cls(None, "", _watchdog_s(env), Path(file))
            found._write_state()
            return found
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        sock.setblocking(False)
        address = "\0" + path[1:] if path.startswith("@") else path
        return cls(sock, address, _watchdog_s(env))

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has something to do."""
        return bool(self._unsent)

    @property
    def is_heard(self) -> bool:
        """Whether there is a listener."""
        return self._socket is not None

    def send(self, **fields: object) -> None:
        """Send fields as they are, e.g. `send(READY=1, X_URL=url)`."""
        if self._state_file is not None:
            self._note(fields)
        if self._socket is None:
            return
        lines = [f"{name}={' '.join(str(value).splitlines())}" for name, value in fields.items()]
        with self._lock:
            self._unsent.pop(tuple(fields), None)
            self._unsent[tuple(fields)] = "\n".join(lines).encode(errors="backslashreplace")
        self.flush()

    def flush(self) -> None:
        """Send what the listener had no room for, as far as it has room now."""
        if not self._unsent:  # a worker calls this in each turn of its loop
            return
        with self._lock:
            while self._unsent and self._socket is not None:
                names = next(iter(self._unsent))
                try:
                    self._socket.sendto(self._unsent[names], self._address)
                except (BlockingIOError, TimeoutError):
                    return
                except OSError:
                    pass  # nobody listens
                del self._unsent[names]

    def _note(self, fields: Mapping[str, object]) -> None:
        """Keep the file for probes true."""
        assert self._state_file is not None
        for name, state in (("READY", "ready"), ("STOPPING", "stopping")):
            if name in fields:
                self._state = state
                self._write_state()
        if "WATCHDOG" in fields:
            with contextlib.suppress(OSError):
                os.utime(self._state_file)

    def _write_state(self) -> None:
        """Replace the file in one step, so that no probe sees an empty one."""
        assert self._state_file is not None
        part = self._state_file.with_suffix(".part")
        with contextlib.suppress(OSError):
            part.write_text(f"{self._state}\n")
            part.replace(self._state_file)

    def ready(self, status: str = "ready") -> None:
        """Report that start-up is complete."""
        self.send(READY=1, STATUS=status)

    def status(self, text: str) -> None:
        """Describe the state in one line."""
        self.send(STATUS=text)

    def progress(self, fraction: float) -> None:
        """Report how much of start-up is done, 0 to 1."""
        self.send(X_PROGRESS=f"{fraction:.3f}")

    def watchdog(self) -> None:
        """Report that work makes progress."""
        self.send(WATCHDOG=1)

    def reloading(self) -> None:
        """Report that the configuration is being read again; `ready` follows in any case."""
        self.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)

    def stopping(self) -> None:
        """Report that the process is ending."""
        self.send(STOPPING=1, STATUS="draining")

    def close(self) -> None:
        """Close the socket; later reports are dropped.

        If the listener's socket is full, this waits up to `_CLOSE_S` for room.
        """
        if self._socket is not None:
            self._socket.settimeout(_CLOSE_S)
            self.flush()
            with self._lock:  # a model that is still loading reports its progress on a thread
                self._socket.close()
                self._socket = None


def tell_why(error: Exception) -> None:
    """Tell the supervisor or systemd why this process cannot start."""
    notifier = Notifier.from_environ()
    notifier.send(X_REASON=error, STATUS=error)
    notifier.close()


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    usec = environ.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or int(usec) == 0:
        return None
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # meant for another process, whose environment was inherited
    return int(usec) / 1e6
