"""Usage on the disk: every request counts once, whatever ends or fails meanwhile."""

import errno
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.usage import recorder as recording
from gateway.usage.database import DATABASE, UsageDatabase, ask, spent_on, unwritten
from gateway.usage.entry import Tokens, UsageEntry, read_entry, usage_day
from gateway.usage.log_file import PATTERN, UsageLog
from gateway.usage.recorder import UsageRecorder
from protocol.config.usage_config import UsageConfig
from protocol.errors import ConfigError

NOON = 1_795_348_800.0
DAY = "2026-11-22"


def entry(key: str = "alice", n: int = 1, model: str = "m", at: float = NOON) -> UsageEntry:
    tokens = Tokens(requests=1, prompt=10 * n, completion=n, read=10 * n, generated=n)
    return UsageEntry(time=at, request_id="id", key=key, tenant=key, model=model, tokens=tokens)


def open_recorder(folder: Path, name: str = "a", **config: Any) -> UsageRecorder:
    found = UsageRecorder(folder, UsageConfig(**config), name)
    found.open()
    return found


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[UsageRecorder]:
    found = open_recorder(tmp_path)
    yield found
    found.close()


def completions(folder: Path) -> dict[tuple[str, ...], int]:
    return {group: sums.completion for group, sums in ask(folder, ("key",), {}).items()}


def test_what_is_put_is_in_the_log_and_in_the_database(recorder: UsageRecorder) -> None:
    for n in (1, 2, 3):
        recorder.put(entry(n=n))
    recorder.put(entry("bob", 7))
    recorder.flush().result(5)
    assert completions(recorder.folder) == {("alice",): 6, ("bob",): 7}
    lines = [
        line for path in recorder.folder.glob(PATTERN) for line in path.read_bytes().splitlines()
    ]
    assert sorted(read_entry(line).tokens.completion for line in lines) == [1, 2, 3, 7]
    assert recorder.unwritten() == []
    assert spent_on(recorder.folder, DAY)["bob"].read == 70


@pytest.mark.parametrize("name", ["a?b", "50%41", "a#b", "ä b"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    recorder = open_recorder(tmp_path / name)
    recorder.put(entry())
    recorder.close()
    assert completions(recorder.folder) == {("alice",): 1}
    assert spent_on(recorder.folder, DAY)["alice"].completion == 1


def test_questions_are_bounded_by_days_keys_and_models(recorder: UsageRecorder) -> None:
    recorder.put(entry())
    recorder.put(entry(n=2, model="other"))
    recorder.put(entry(n=4, at=NOON + 86_400))
    recorder.flush().result(5)
    folder = recorder.folder
    assert {
        group: sums.completion for group, sums in ask(folder, ("day", "model"), {}).items()
    } == {
        (DAY, "m"): 1,
        (DAY, "other"): 2,
        ("2026-11-23", "m"): 4,
    }
    assert ask(folder, (), {}, DAY, DAY)[()].completion == 3
    assert ask(folder, (), {"model": "m"})[()].completion == 5
    assert ask(folder, (), {"key": "nobody"}) == {}
    assert ask(folder, ("key",), {"key": "x' OR '1'='1"}) == {}


def test_a_crash_between_log_and_database_loses_and_doubles_nothing(tmp_path: Path) -> None:
    log = UsageLog(tmp_path, "dead", max_bytes=0, fsync_s=0)
    log.append(entry(n=5).line() + entry(n=6).line())
    log.append(entry(n=9).line()[:-4])  # a torn line: its process died
    log.close()
    for name in ("a", "b"):
        open_recorder(tmp_path, name).close()
    assert completions(tmp_path) == {("alice",): 11}
    (tmp_path / DATABASE).unlink()
    open_recorder(tmp_path, "c").close()
    assert completions(tmp_path) == {("alice",): 11}, "made anew from the log"


def test_several_processes_count_into_one_database(tmp_path: Path) -> None:
    several = [open_recorder(tmp_path, name) for name in "abc"]

    def put(recorder: UsageRecorder) -> None:
        for _ in range(200):
            recorder.put(entry())

    threads = [threading.Thread(target=put, args=(recorder,)) for recorder in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for recorder in several:
        recorder.close()
    assert completions(tmp_path) == {("alice",): 600}


def test_a_disk_that_is_nearly_full_is_told_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has room for some entries: each ended the failure, and the next began a new one."""
    caplog.set_level("INFO")
    is_full, real = [False], os.write

    def write(fd: int, data: bytes) -> int:
        if is_full[0] and b"completion" in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("gateway.usage.log_file.os.write", write)
    recorder = open_recorder(tmp_path)
    for is_full[0] in (True, False) * 3:
        recorder.put(entry())
        recorder.flush().result(5)
    recorder.close()
    told = [record.message for record in caplog.records if record.message.startswith("usage ")]
    assert told == ["usage not written", "usage written again"]
    assert completions(tmp_path) == {("alice",): 6}


def test_a_full_disk_loses_nothing_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_full = True
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if is_full and b"completion" in data:
            real(fd, data[:7])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("gateway.usage.log_file.os.write", write)
    recorder = open_recorder(tmp_path)
    for n in (1, 2):
        recorder.put(entry(n=n))
        recorder.flush().result(5)
    (kept,) = recorder.unwritten()
    assert (kept.tokens.requests, kept.tokens.completion) == (2, 3)
    assert unwritten([kept], ("key",), {})[("alice",)].completion == 3
    assert [r.message for r in caplog.records].count("usage not written") == 1
    is_full = False
    recorder.put(entry(n=4))
    recorder.flush().result(5)
    assert recorder.unwritten() == []
    recorder.close()
    assert completions(tmp_path) == {("alice",): 7}
    (path,) = tmp_path.glob(PATTERN)
    assert len(path.read_bytes().splitlines()) == 2, "the torn lines were taken back"


def test_who_gives_up_waiting_for_a_flush_stops_nothing(recorder: UsageRecorder) -> None:
    assert not recorder.flush().cancel()
    recorder.put(entry())
    recorder.flush().result(5)
    assert completions(recorder.folder) == {("alice",): 1}


def test_a_file_that_ended_while_the_database_was_locked_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(_: UsageDatabase, path: Path) -> None:
        raise sqlite3.OperationalError(f"database is locked: {path}")

    recorder = open_recorder(tmp_path, max_mib=1)
    with monkeypatch.context() as patch:
        patch.setattr(UsageDatabase, "take_in", locked)
        recorder.put(entry(n=1))
        recorder.flush().result(5)
    monkeypatch.setattr(UsageLog, "_is_full", lambda *_: True)
    recorder.put(entry(n=2))
    recorder.flush().result(5)
    assert len(list(tmp_path.glob(PATTERN))) == 2
    assert completions(tmp_path) == {("alice",): 3}
    recorder.close()


def test_a_file_that_another_gateway_removes_meanwhile_ends_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "usage-2026-01-01-other-1.jsonl"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([gone]))
    open_recorder(tmp_path, keep_days=1).close()


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_QUEUED", 3)
    monkeypatch.setattr(recording, "MAX_SUMS", 2)
    recorder = UsageRecorder(tmp_path, UsageConfig(), "a")  # its thread never starts
    for number in range(10):
        recorder.put(entry(f"key-{number}"))
    left = recorder.unwritten()
    assert len(left) == 3 + 2 + 1
    assert sum(each.tokens.requests for each in left) == 10


def test_a_file_that_was_removed_is_followed_by_another(tmp_path: Path) -> None:
    log = UsageLog(tmp_path, "a", max_bytes=0, fsync_s=-1)
    log.append(b"1\n")
    log.path.unlink()
    log.append(b"2\n")
    log.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"2\n"]


def test_files_end_when_they_are_full(tmp_path: Path) -> None:
    log = UsageLog(tmp_path, "a", max_bytes=400, fsync_s=-1)
    for _ in range(5):
        log.append(entry().line())
    log.close()
    sizes = [path.stat().st_size for path in tmp_path.glob(PATTERN)]
    assert len(sizes) > 1 and max(sizes) <= 400


def test_old_files_go_and_their_sums_stay(tmp_path: Path) -> None:
    open_recorder(tmp_path, "old").close()
    log = UsageLog(tmp_path, "old", max_bytes=0, fsync_s=0)
    log.append(entry(n=5).line())
    log.close()
    (path,) = tmp_path.glob(PATTERN)
    os.utime(path, (NOON - 86_400 * 40, NOON - 86_400 * 40))
    recorder = open_recorder(tmp_path, "new", keep_days=30)
    recorder.put(entry(n=1))
    recorder.flush().result(5)
    recorder.close()
    assert not path.exists()
    assert completions(tmp_path) == {("alice",): 6}


def test_a_clock_that_is_set_forward_removes_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_recorder(tmp_path, "old").close()
    log = UsageLog(tmp_path, "old", max_bytes=0, fsync_s=0)
    log.append(entry(n=5).line())
    log.close()
    (path,) = tmp_path.glob(PATTERN)
    recorder = open_recorder(tmp_path, "new", keep_days=30)
    recorder.put(entry(n=1))
    recorder.flush().result(5)
    later = time.time() + 86_400 * 365
    monkeypatch.setattr("gateway.usage.recorder.time.time", lambda: later)
    recorder.put(entry(n=1))
    recorder.flush().result(5)
    recorder.close()
    assert path.exists()


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"not json",
        b'{"time": 1, "completion": -1}',
        b'{"time": 1, "completion": 1e300}',
        b'{"time": 1, "requests": 9007199254740992}',
        b'{"time": "now"}',
        b'{"time": 1e300}',
        b'{"time": 1, "key": 7}',
        b'{"time": 1, "read": true}',
    ],
)
def test_a_strange_line_is_left_out_and_the_others_count(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "usage-x.jsonl").write_bytes(entry(n=2).line() + line + b"\n" + entry(n=3).line())
    open_recorder(tmp_path).close()
    assert completions(tmp_path) == {("alice",): 5}


def test_names_with_any_characters_are_written_and_read() -> None:
    odd = entry("a\n\"'\ud800\0" + "x" * 1000)
    found = read_entry(odd.line())
    assert b"\n" not in odd.line()[:-1]
    assert len(found.key) == 512 and found.tokens == odd.tokens


def test_a_broken_or_newer_database_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"this is no database" * 100)
    with pytest.raises(ConfigError, match="made anew"):
        open_recorder(tmp_path)
    (tmp_path / DATABASE).unlink()
    database = UsageDatabase(tmp_path)
    database.open()
    database.close()
    connection = sqlite3.connect(tmp_path / DATABASE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="newer llamapool"):
        open_recorder(tmp_path)


def test_a_database_that_is_removed_while_it_is_open_is_made_anew(tmp_path: Path) -> None:
    before = open_recorder(tmp_path, "before")
    before.put(entry(n=5))
    before.close()
    recorder = open_recorder(tmp_path)
    recorder.put(entry(n=2))
    recorder.flush().result(5)
    for path in tmp_path.glob(f"{DATABASE}*"):
        path.unlink()
    recorder.put(entry(n=1))
    recorder.flush().result(5)
    assert completions(tmp_path) == {("alice",): 8}
    recorder.close()


def test_a_database_that_another_program_holds_ends_no_start_and_is_caught_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_recorder(tmp_path, "1")
    before.put(entry())
    before.close()
    monkeypatch.setattr("gateway.usage.database._BUSY_S", 0.01)
    monkeypatch.setattr("gateway.usage.recorder._RETRY_S", 0.01)
    (tmp_path / DATABASE).unlink()
    other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    found = open_recorder(tmp_path, "2")
    found.put(entry())
    found.flush().result(5)
    other.execute("COMMIT")
    other.close()
    found.put(entry())
    found.close()
    (tokens,) = ask(tmp_path, ("key",), {}).values()
    assert tokens.requests == 3


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="usage"):
        open_recorder(tmp_path / "file" / "usage")


def test_only_the_user_of_the_server_reads_the_files(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path)  # the folder exists, and others may enter it
    recorder.put(entry())
    recorder.close()
    recorder = open_recorder(tmp_path)
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    recorder.close()
    assert "usage.sqlite" in modes
    assert {mode for name, mode in modes.items() if not name.startswith(".")} == {0o600}, modes


def test_a_day_is_one_of_utc() -> None:
    assert usage_day(NOON) == DAY
