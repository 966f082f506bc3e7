"""sd_notify: what reaches the socket, and that nothing ever fails."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def _fill(notifier: Notifier) -> int:
    """Send reports, each of a kind of its own, until the listener has no room; return how many."""
    sent = 0
    while not notifier.has_unsent:
        notifier.send(**{f"X_{sent}": sent})
        sent += 1
    return sent


def test_what_finds_the_listener_full_is_sent_later_the_newest_of_each_kind(
    listener: socket.socket, notifier: Notifier
) -> None:
    sent = _fill(notifier)
    for step in range(100):
        notifier.progress(step / 100)
    notifier.ready()
    assert [listener.recv(4096) for _ in range(sent - 1)] == [
        b"X_%d=%d" % (n, n) for n in range(sent - 1)
    ]
    notifier.flush()
    assert not notifier.has_unsent
    late = [listener.recv(4096) for _ in range(3)]
    assert late == [
        b"X_%d=%d" % (sent - 1, sent - 1),
        b"X_PROGRESS=0.990",
        b"READY=1\nSTATUS=ready",
    ]


def test_a_process_that_ends_waits_for_room_for_its_last_report(
    listener: socket.socket, notifier: Notifier
) -> None:
    sent = _fill(notifier)
    notifier.send(X_REASON="broken")
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(lambda: [listener.recv(4096) for _ in range(sent + 1)])
        notifier.close()
        assert read.result()[-1] == b"X_REASON=broken"


def test_a_process_that_ends_does_not_wait_for_who_reads_nothing(notifier: Notifier) -> None:
    _fill(notifier)
    notifier.close()
