"""`llamapool` on a terminal: one screen that says what to do, the log on demand, and a hang-up."""

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.process import ROOT, python

pytestmark = pytest.mark.slow

LIMIT_S = 20.0


def shown(tmp_path: Path, *options: str) -> str:
    """Return what a terminal gets from the start to the end of a pool that is ended by Ctrl-C."""
    config = tmp_path / "pool.toml"
    config.write_text('[gateway]\nport = 0\n[[worker]]\nbackend = "fake"\nalias = "tiny"\n')
    ours, theirs = pty.openpty()
    command = python("-m", "worker.cli", "serve", "--config", str(config), *options)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT)
    os.close(theirs)
    try:
        text = read_until(ours, "doctor")
        process.send_signal(signal.SIGINT)
        text += read_until(ours, "")
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return text


def read_until(fd: int, end: str) -> str:
    """Read until this text has come, or with none until nobody writes any more."""
    text = ""
    deadline = time.monotonic() + LIMIT_S
    while not (end and end in text):
        assert select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0], text
        try:
            text += os.read(fd, 4096).decode()
        except OSError:  # EIO: the last writer has closed the terminal
            break
    return text


def test_a_start_shows_what_to_do_and_no_log(tmp_path: Path) -> None:
    text = shown(tmp_path)
    assert "tiny  1 worker on the fake backend" in text
    assert "/v1/chat/completions" in text
    assert "Finishing running requests" in text
    assert " INFO " not in text


def test_verbose_shows_the_log_as_well(tmp_path: Path) -> None:
    text = shown(tmp_path, "-v")
    assert "tiny  1 worker on the fake backend" in text
    assert "INFO supervisor" in text


def test_a_gateway_alone_drains_when_its_terminal_is_closed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = python("-m", "gateway", "--port", "0", "--bind", f"ipc://{tmp_path}/w.sock")
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT)
    os.close(theirs)
    try:
        read_until(ours, "listening")
        os.close(ours)
        for _ in range(2):  # the kernel's, and the shell's
            process.send_signal(signal.SIGHUP)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
