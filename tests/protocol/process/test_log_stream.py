"""A log that nobody reads stops nobody."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.config.config import LogConfig
from protocol.process import logs
from protocol.process.log_stream import LogStream

LINE = "x" * 9000
"""Three pieces of at most 4,096 bytes; a pipe has room for sixteen: five lines and a torn one."""


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The log pipe of a process that a supervisor has started; its ends, to read and to write."""
    handlers = logging.getLogger().handlers[:]
    ends = os.pipe()
    monkeypatch.setenv(logs.LOG_FD_VARIABLE, str(ends[1]))
    logs.configure("part", LogConfig(timestamps=False))
    yield ends
    logging.getLogger().handlers[:] = handlers
    for end in ends:
        os.close(end)


def all_of(end: int) -> str:
    os.set_blocking(end, False)
    text = b""
    while True:
        try:
            text += os.read(end, 1 << 20)
        except BlockingIOError:
            return text.decode()


def test_lines_that_do_not_fit_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    for number in range(40):
        logging.getLogger("part").warning("done", extra={"line": f"{number}{LINE}"})
    text = all_of(pipe[0])
    n_whole = text.count(f"{LINE}\n")
    assert n_whole == 5
    logging.getLogger("part").warning("read again")
    *whole, torn, again, told = (text + all_of(pipe[0])).splitlines()
    assert len(whole) == n_whole
    assert not torn.endswith(LINE)
    assert again == "WARNING part read again"
    assert f"log lines dropped n_lines={40 - n_whole} " in told


def test_who_reads_all_the_time_gets_every_line(pipe: tuple[int, int]) -> None:
    text = ""
    for number in range(100):
        logging.getLogger("part").warning("done", extra={"line": f"{LINE}{number}"})
        text += all_of(pipe[0])
    assert [line.rsplit("x", 1)[1] for line in text.splitlines()] == [str(n) for n in range(100)]


def test_a_reader_that_has_gone_is_no_error(
    pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), pipe[0])
    logging.getLogger("part").warning("done")
    assert capfd.readouterr() == ("", "")


def test_a_fifo_as_log_file_that_nobody_reads_stops_nobody(tmp_path: Path) -> None:
    handlers = logging.getLogger().handlers[:]
    path = tmp_path / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        logs.configure("part", LogConfig(file=str(path)))
        for _ in range(40):
            logging.getLogger("part").warning("done", extra={"line": LINE})
        assert all_of(reader).count("done") >= 5
    finally:
        logging.getLogger().handlers[:] = handlers
        os.close(reader)


@pytest.mark.timeout(10)
def test_a_terminal_that_nobody_reads_stops_nobody() -> None:
    reader, terminal = os.openpty()
    stream = LogStream(terminal)
    for _ in range(300):
        stream.write("x" * 300 + "\n")  # it has room for some of a line, at last
    assert os.get_blocking(terminal)  # the shell writes to it, too
    assert os.read(reader, 1000).startswith(b"x" * 300 + b"\r\n")
    for end in (reader, terminal):
        os.close(end)


def test_what_was_lost_to_a_full_disk_is_told(caplog: pytest.LogCaptureFixture) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    stream = LogStream(fd)
    for _ in range(3):
        stream.write("lost\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    stream.write("kept\n")
    assert "log lines dropped n_lines=3 " in caplog.text
    for end in (fd, null):
        os.close(end)
