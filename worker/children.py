"""One supervised process: spawning, its last words, its reports, its death.

It does what the supervisor decides and knows no policy. Reports come over a datagram socket of its
own, so the sender needs no proof of who it is; standard error comes through a pipe.
"""

import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from protocol.logs import stream_id
from worker.launch import Launch

_KEPT_LINES = 20
_READ_BYTES = 65536


class State(Enum):
    """Where in its life a child is."""

    WAITING = "waiting"
    """Not running; starts when its delay is over."""
    STARTING = "starting"
    READY = "ready"
    QUARANTINED = "quarantined"
    """Not running, and will not be started again."""
    ENDED = "ended"
    """Not running, because we asked it to end."""


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.WAITING: frozenset({State.STARTING, State.ENDED}),
    State.STARTING: frozenset({State.READY, State.WAITING, State.QUARANTINED, State.ENDED}),
    State.READY: frozenset({State.WAITING, State.QUARANTINED, State.ENDED}),
    State.QUARANTINED: frozenset(),
    State.ENDED: frozenset(),
}


class Child:
    """A process and what we hear of it."""

    def __init__(self, launch: Launch, notify_path: Path) -> None:
        self.launch = launch
        self.state = State.WAITING
        self.progress = 0.0
        self.url = ""
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.stderr_fd = -1
        self.notify_fd = -1
        self._path = notify_path
        self._notify: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._partial = b""

    def __repr__(self) -> str:
        return f"<Child {self.launch.name} {self.state.value} pid={self.pid}>"

    @property
    def pid(self) -> int:
        """Return the process id; 0 while it does not run."""
        return self._process.pid if self._process else 0

    @property
    def is_alive(self) -> bool:
        """Tell whether there is a process that was not yet reaped."""
        return self._process is not None

    def become(self, state: State) -> None:
        """Change the state along `TRANSITIONS`."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"{self!r} cannot become {state.value}")
        self.state = state

    def spawn(self) -> None:
        """Start the process in a session of its own, so that Ctrl-C reaches only us."""
        self._listen()
        read_end, write_end = os.pipe()
        env = {**self.launch.env, "NOTIFY_SOCKET": str(self._path)}
        if self.launch.journal:  # what it writes ends there, so it shall write in that form
            env["JOURNAL_STREAM"] = stream_id(write_end)
        try:
            with _readable(self.launch.stdin) as stdin:
                self._process = subprocess.Popen(
                    self.launch.argv,
                    env=env,
                    stdin=stdin,
                    stdout=write_end,
                    stderr=write_end,
                    start_new_session=True,
                )
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        self.stderr_fd = read_end
        self.progress = 0.0
        self._partial = b""
        self.last_lines.clear()

    def _listen(self) -> None:
        self._path.unlink(missing_ok=True)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._notify.setblocking(False)
        self._notify.bind(str(self._path))
        self.notify_fd = self._notify.fileno()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def read_stderr(self) -> bytes:
        """Return the whole lines that have come in; they are also kept as `last_lines`."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.stderr_fd, _READ_BYTES)
        return self._lines(data)

    def _lines(self, data: bytes) -> bytes:
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        if len(rest) > _READ_BYTES:  # no newline in sight: pass it on as it is
            whole, newline, rest = rest, b"\n", b""
        self._partial = rest
        for line in whole.splitlines():
            self.last_lines.append(line.decode(errors="replace"))
        return whole + newline

    def read_reports(self) -> list[dict[str, str]]:
        """Return the reports that have come in, each a map of fields."""
        reports = []
        with contextlib.suppress(OSError):
            while self._notify is not None:
                text = self._notify.recv(_READ_BYTES).decode(errors="replace")
                pairs = (line.partition("=") for line in text.splitlines())
                reports.append({name: value for name, _, value in pairs})
        return reports

    def reap(self) -> int | None:
        """Return the exit code once the process is dead, and give its files back."""
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self._process = None
        return code

    def close(self) -> bytes:
        """Close pipe and socket of a dead process; returns its last unread output."""
        output = b""
        while chunk := self._rest():
            output += self._lines(chunk)
        if self._partial:
            output += self._lines(b"\n")
        os.close(self.stderr_fd)
        if self._notify is not None:
            self._notify.close()
        self._notify = None
        self.stderr_fd = self.notify_fd = -1
        self._path.unlink(missing_ok=True)
        return output

    def _rest(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(self.stderr_fd, _READ_BYTES)
        return b""


@contextlib.contextmanager
def _readable(data: bytes) -> Iterator[int]:
    """Lend a descriptor that yields these bytes, of a file that has no name."""
    if not data:
        yield subprocess.DEVNULL
        return
    with _nameless() as file:
        file.write(data)
        file.seek(0)
        yield file.fileno()


def _nameless() -> IO[bytes]:
    """Open a file that no directory knows; on Linux it never comes near a disk."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("stdin"), "w+b")
    return TemporaryFile()
