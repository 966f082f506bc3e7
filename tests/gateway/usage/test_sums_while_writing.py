"""Questions about the usage while it is being written: each request counts once."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.routes.operators import usage as endpoints
from gateway.siblings.siblings import Siblings
from gateway.usage.database import UsageDatabase, ask, spent_on
from gateway.usage.log_file import PATTERN
from gateway.usage.recorder import UsageRecorder
from tests.gateway.usage.test_recorder import DAY, entry, open_recorder

ALL = endpoints.UsageQuestion(("key",), {}, "", "")
WRITTEN_S = 0.3
"""Longer than a write takes."""


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[UsageRecorder]:
    found = open_recorder(tmp_path)
    found.flush().result(5)
    yield found
    found.close()


def asked(recorder: UsageRecorder) -> int:
    found: int = endpoints._sum_up(recorder, ALL, ())["total"]["requests"]
    return found


def test_what_is_in_memory_at_the_question_does_not_count_in_the_database_too(
    recorder: UsageRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any) -> Any:
        time.sleep(WRITTEN_S)
        return ask(*args)

    monkeypatch.setattr(endpoints, "ask", slow)
    recorder.put(entry())
    assert asked(recorder) == 1


def test_what_is_being_written_counts(
    recorder: UsageRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, has_begun = recorder._log.append, threading.Event()

    def slow(data: bytes) -> None:
        has_begun.set()
        time.sleep(WRITTEN_S)
        append(data)

    monkeypatch.setattr(recorder._log, "append", slow)
    recorder.put(entry())
    assert has_begun.wait(5.0)
    assert asked(recorder) == 1


async def test_another_gateway_is_told_only_what_cannot_be_written(
    recorder: UsageRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = endpoints.UsageEndpoints(recorder, Siblings(""))
    monkeypatch.setattr(recorder, "unwritten", lambda: [entry()])
    assert await answers._flush_for_sibling({}) == {"unwritten": []}
    monkeypatch.setattr(recorder._log, "append", _full)
    recorder.put(entry())
    found = await answers._flush_for_sibling({})
    assert len(found["unwritten"]) == 1


def _full(_: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_lines_that_the_database_lacks_count(
    recorder: UsageRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.put(entry())
    recorder.flush().result(5)
    with monkeypatch.context() as patch:
        patch.setattr(UsageDatabase, "take_in", _locked)
        recorder.put(entry("bob", n=3))
        recorder.flush().result(5)
        assert asked(recorder) == 2
        assert ask(recorder.folder, ("key",), {"key": "bob"})[("bob",)].completion == 3
        assert spent_on(recorder.folder, DAY)["bob"].completion == 3
    other = UsageDatabase(recorder.folder)  # of another gateway, which takes them in first
    other.open()
    for path in recorder.folder.glob(PATTERN):
        other.take_in(path)
    assert asked(recorder) == 2
    other.close()


def test_a_question_that_cannot_read_the_log_fails(
    recorder: UsageRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as when no descriptor is free: sums without its lines would be wrong."""
    monkeypatch.setattr(UsageDatabase, "take_in", _locked)
    recorder.put(entry())
    recorder.flush().result(5)

    def unreadable(*_: object) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", unreadable)
        with pytest.raises(sqlite3.Error, match="Too many open files"):
            asked(recorder)
    recorder._log.path.unlink()
    assert asked(recorder) == 0


async def test_another_gateway_is_not_told_what_is_in_the_log(
    recorder: UsageRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = endpoints.UsageEndpoints(recorder, Siblings(""))
    monkeypatch.setattr(UsageDatabase, "take_in", _locked)
    recorder.put(entry())
    recorder.flush().result(5)
    monkeypatch.setattr(recorder, "unwritten", lambda: [entry()])  # came since
    assert await answers._flush_for_sibling({}) == {"unwritten": []}


def _locked(_: UsageDatabase, path: Path) -> None:
    raise sqlite3.OperationalError(f"database is locked: {path}")
