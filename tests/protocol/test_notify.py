"""sd_notify: what reaches the socket, and that nothing ever fails."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.process.notify import Notifier


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify.sock"))
        sock.settimeout(5)
        yield sock


@pytest.fixture
def notifier(listener: socket.socket) -> Iterator[Notifier]:
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": listener.getsockname()})
    yield notifier
    notifier.close()


def test_each_report_is_one_datagram_of_lines(listener: socket.socket, notifier: Notifier) -> None:
    notifier.ready("two\nlines")
    assert listener.recv(4096) == b"READY=1\nSTATUS=two lines"
    notifier.progress(0.25)
    assert listener.recv(4096) == b"X_PROGRESS=0.250"
    notifier.watchdog()
    assert listener.recv(4096) == b"WATCHDOG=1"
    notifier.status("busy")
    assert listener.recv(4096) == b"STATUS=busy"
    notifier.stopping()
    assert listener.recv(4096).startswith(b"STOPPING=1\n")
    notifier.send(READY=1, X_URL="http://x")
    assert listener.recv(4096) == b"READY=1\nX_URL=http://x"


def test_abstract_address_is_understood() -> None:
    name = f"llamapool-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        notifier = Notifier.from_environ({"NOTIFY_SOCKET": f"@{name}"})
        notifier.watchdog()
        assert sock.recv(4096) == b"WATCHDOG=1"
        notifier.close()


@pytest.mark.parametrize("path", ["", "relative", "/no/such/socket", "@nobody-listens-here"])
def test_no_listener_is_no_error(path: str) -> None:
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": path})
    notifier.ready()
    assert notifier.is_heard == path.startswith(("/", "@"))
    notifier.close()
    notifier.ready()


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "10000000"}, 5.0),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_watchdog_is_due_at_half_the_listeners_patience(
    environ: dict[str, str], interval_s: float | None
) -> None:
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": "/no/such/socket", **environ})
    assert notifier.watchdog_interval_s == interval_s
    notifier.close()


def test_a_state_file_says_for_probes_what_the_process_is(tmp_path: Path) -> None:
    path = tmp_path / "state"
    environ = {"LLAMAPOOL_STATE_FILE": str(path), "WATCHDOG_USEC": "10000000"}
    notifier = Notifier.from_environ(environ)
    assert (path.read_text(), notifier.watchdog_interval_s) == ("starting\n", 5.0)
    notifier.status("loading")
    assert path.read_text() == "starting\n"
    notifier.ready()
    assert path.read_text() == "ready\n"
    os.utime(path, (0, 0))
    notifier.status("serving")
    assert path.stat().st_mtime == 0
    notifier.watchdog()
    assert path.stat().st_mtime > 0
    notifier.stopping()
    assert path.read_text() == "stopping\n"


def test_a_state_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    notifier = Notifier.from_environ({"LLAMAPOOL_STATE_FILE": str(tmp_path / "no" / "state")})
    notifier.ready()
    notifier.watchdog()


def test_who_listens_gets_the_reports_and_no_file_is_written(
    listener: socket.socket, tmp_path: Path
) -> None:
    environ = {"NOTIFY_SOCKET": listener.getsockname(), "LLAMAPOOL_STATE_FILE": str(tmp_path / "x")}
    notifier = Notifier.from_environ(environ)
    notifier.ready()
    assert listener.recv(4096) == b"READY=1\nSTATUS=ready"
    assert not (tmp_path / "x").exists()
    notifier.close()
