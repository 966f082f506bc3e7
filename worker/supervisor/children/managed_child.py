"""One supervised process: start, log, standard error, reports, end.

Each child has a separate datagram socket for its reports, so that the sender is known. Its log
lines come through one pipe, and all its other output through a second pipe.
"""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

from protocol.process.logs import LOG_FD_VARIABLE, stream_id
from worker.supervisor.children.launch import Launch

_READ_BYTES = 65536
"""Bytes read at once, and longest line that is passed on whole."""
_PIPE_BYTES = 256 * 1024
"""Output that waits for the supervisor to read it: a child drops log lines that find it full."""


class ChildState(Enum):
    """State of a child."""

    WAITING = "waiting"
    """Not running; starts when its delay is over."""
    STARTING = "starting"
    READY = "ready"
    QUARANTINED = "quarantined"
    """Not running because it died too often; starts when its quarantine is over."""
    GIVEN_UP = "given up"
    """Not running, and will not be started again."""
    ENDED = "ended"
    """Not running because the supervisor asked it to end."""


_AFTER_DEATH = (ChildState.WAITING, ChildState.QUARANTINED, ChildState.GIVEN_UP)
TRANSITIONS: Mapping[ChildState, frozenset[ChildState]] = {
    ChildState.WAITING: frozenset({ChildState.STARTING, ChildState.ENDED}),
    ChildState.STARTING: frozenset({ChildState.READY, ChildState.ENDED, *_AFTER_DEATH}),
    ChildState.READY: frozenset({ChildState.ENDED, *_AFTER_DEATH}),
    ChildState.QUARANTINED: frozenset({ChildState.STARTING, ChildState.ENDED}),
    ChildState.GIVEN_UP: frozenset({ChildState.ENDED}),
    ChildState.ENDED: frozenset(),
}


class Output:
    """Reads one pipe of a process, in whole lines."""

    def __init__(self) -> None:
        self.fd, self.write_end = os.pipe()
        os.set_blocking(self.fd, False)
        with contextlib.suppress(OSError):  # the user may have no more memory for pipes
            fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.has_ended = False
        """Whether all writers have closed it; a process that dies slowly may still exist."""
        self._partial = b""

    def read(self) -> bytes:
        """Return the complete lines that have arrived."""
        whole, newline, rest = (self._partial + self._chunk()).rpartition(b"\n")
        if len(rest) > _READ_BYTES:  # a very long line: pass it on in pieces
            whole, newline, rest = rest, b"\n", b""
        self._partial = rest
        return whole + newline

    def close(self) -> bytes:
        """Close the pipe of an ended process; return the rest of its output, in whole lines."""
        found = self._partial
        while chunk := self._chunk():
            found += chunk
        os.close(self.fd)
        return found if found.endswith(b"\n") or not found else found + b"\n"

    def _chunk(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self.fd, _READ_BYTES)
            self.has_ended = not chunk
            return chunk
        return b""


class ManagedChild:
    """A process with its pipes and its reports."""

    def __init__(self, launch: Launch, notify_path: Path) -> None:
        self.launch = launch
        self.state = ChildState.WAITING
        self.progress = 0.0
        self.url = ""
        self.reason = ""
        """Its own report of why it cannot work; may be empty."""
        self.abort_reason = ""
        """The last output of a library that aborted the process."""
        self.last_pid = 0
        """Process id of its last run."""
        self.reports: dict[str, str] = {}
        """The last value of each field that it has reported."""
        self.log: Output | None = None
        self.stderr: Output | None = None
        self.notify_fd = -1
        self._path = notify_path
        self._notify: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<ManagedChild {self.launch.name} {self.state.value} pid={self.pid}>"

    @property
    def pid(self) -> int:
        """Return the process id; 0 while it does not run."""
        return self._process.pid if self._process else 0

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that has not been reaped."""
        return self._process is not None

    def become(self, state: ChildState) -> None:
        """Change the state along `TRANSITIONS`."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"{self!r} cannot become {state.value}")
        self.state = state

    def spawn(self, env: Mapping[str, str] | None = None) -> None:
        """Start the process in a new session, so that Ctrl-C reaches the supervisor only.

        `env` has variables of this run alone. Raises `OSError`, and then leaves nothing open, if
        the system has no processes, descriptors or memory left.
        """
        self.progress, self.reason, self.abort_reason, self.reports = 0.0, "", "", {}
        try:
            self._listen()
            self.log = Output()
            self.stderr = Output()
            with _readable(self.launch.stdin) as stdin:
                self._process = self._popen(
                    stdin, self.log.write_end, self.stderr.write_end, env or {}
                )
        except BaseException:
            self.close()
            raise

    def _popen(
        self, stdin: int, log_fd: int, stderr_fd: int, own: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        env = {
            **self.launch.env,
            **own,
            "NOTIFY_SOCKET": str(self._path),
            LOG_FD_VARIABLE: str(log_fd),
        }
        if self.launch.journal:  # its log goes there, so it must use the journal's form
            env["JOURNAL_STREAM"] = stream_id(log_fd)
        process = subprocess.Popen(
            self.launch.argv,
            env=env,
            stdin=stdin,
            stdout=stderr_fd,
            stderr=stderr_fd,
            pass_fds=(log_fd, *self.launch.fds),
            start_new_session=True,
        )
        self._close_write_ends()
        self.last_pid = process.pid
        return process

    def _close_write_ends(self) -> None:
        for output in (self.log, self.stderr):
            if output is not None and output.write_end >= 0:
                os.close(output.write_end)
                output.write_end = -1

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to read while it runs: log, standard error, reports."""
        assert self.log is not None and self.stderr is not None, "it does not run"
        return self.log.fd, self.stderr.fd, self.notify_fd

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

    def read_reports(self) -> list[dict[str, str]]:
        """Return the reports that have arrived, each a map of fields."""
        reports = []
        with contextlib.suppress(OSError):
            while self._notify is not None:
                text = self._notify.recv(_READ_BYTES).decode(errors="replace")
                pairs = (line.partition("=") for line in text.splitlines())
                reports.append({name: value for name, _, value in pairs})
        return reports

    def reap(self) -> int | None:
        """Return the exit code if the process has ended, else None."""
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self._process = None
        return code

    def close(self) -> tuple[bytes, bytes]:
        """Close pipes and socket of an ended process; return the rest of log and standard error."""
        self._close_write_ends()
        log, stderr = (
            reader.close() if reader is not None else b"" for reader in (self.log, self.stderr)
        )
        self.log = self.stderr = None
        if self._notify is not None:
            self._notify.close()
        self._notify = None
        self.notify_fd = -1
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        return log, stderr


@contextlib.contextmanager
def _readable(data: bytes) -> Iterator[int]:
    """Open a descriptor from which these bytes can be read; they are in memory only."""
    if not data:
        yield subprocess.DEVNULL
        return
    with os.fdopen(os.memfd_create("stdin"), "w+b") as file:
        file.write(data)
        file.seek(0)
        yield file.fileno()
