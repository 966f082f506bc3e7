"""Key files: what they may say, what is refused and where, and that a change is noticed."""

import asyncio
import datetime as dt
import logging
import math
import os
import threading
import time
from pathlib import Path

import pytest

from gateway.keys.api_key import ApiKey, KeyLimits, PriorityClass, digest
from gateway.keys.parse import KeyFileError, parse_keys
from gateway.keys.ring import KeyFile, open_ring
from protocol.errors import ConfigError
from tests.gateway.inprocess import until

DIGEST = digest("secret").hex()
WHOLE = f"""# keys of the team
[[key]]
name = "alice"
sha256 = "{DIGEST}"
scopes = ["infer", "metrics"]
models = ["small", "big-*"]
priority = "high"
concurrent = 4
requests_per_minute = 60
tokens_per_minute = 20_000
tokens_per_day = 1_000_000
expires = 2027-01-31

[[key]]
name = "bot"
key = "in clear"
"""


def test_a_table_has_all_that_a_key_may_do() -> None:
    alice, bot = parse_keys(WHOLE)
    assert alice == ApiKey(
        name="alice",
        digests=(digest("secret"),),
        scopes=frozenset({"infer", "metrics"}),
        models=("small", "big-*"),
        limits=KeyLimits(
            priority=PriorityClass.HIGH,
            concurrent=4,
            requests_per_minute=60,
            tokens_per_minute=20_000,
            tokens_per_day=1_000_000,
        ),
        expires_at=dt.datetime(2027, 1, 31, tzinfo=dt.UTC).timestamp(),
    )
    assert bot.digests == (digest("in clear"),)
    assert bot.scopes == {"infer"}
    assert bot.expires_at == math.inf
    assert alice.allows("big-7b")
    assert alice.allows("other", "small")
    assert not alice.allows("bigger")
    assert bot.allows("anything")


def key(*lines: str) -> str:
    return "\n".join(["", "[[key]]", 'name = "a"', *lines, ""])


SHA = f'sha256 = "{DIGEST}"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (key(SHA, "concurrent = -1"), r"line 5: key 'a': Field 'concurrent': Value must be"),
        (key(SHA, "concurrent = 1e400"), r"line 5: .*must be an integer"),
        (key(SHA, "concurent = 1"), r"line 5: .*did you mean 'concurrent'"),
        (key(SHA, 'scopes = ["root"]'), r"line 5: .*'scopes': must be a list of some of: admin"),
        (key(SHA, "scopes = []"), r"line 5: .*'scopes'"),
        (key(SHA, 'models = "small"'), r"line 5: .*'models': must be a list"),
        (key(SHA, 'priority = "urgent"'), r"line 5: .*must be one of high, normal, low"),
        (key(SHA, "priority = [1]"), r"line 5: .*must be one of high, normal, low"),
        (key(SHA, 'expires = "soon"'), r"line 5: .*'expires': must be a date"),
        (key('sha256 = "abc"'), r"line 4: .*64 hexadecimal digits"),
        (key('key = " "'), r"line 4: .*'key': must be a text"),
        (key(SHA, 'key = "b"'), r"line 5: .*needs one of the fields"),
        (key(), r"line 2: key 'a': needs one of the fields"),
        (f"[[key]]\n{SHA}\n", "line 1: Field 'name': is missing"),
        (f'[[key]]\nname = "a b"\n{SHA}\n', "line 2: .*'name': must be 1 to 64 letters"),
        (f'[[key]]\nname = ["a"]\n{SHA}\n', "line 2: Field 'name'"),
        (key(SHA) + key('key = "b"'), "two keys have the name 'a'"),
        (key(SHA) + f'[[key]]\nname = "b"\n{SHA}', "keys 'a' and 'b' are the same key"),
        ('[[key]]\nname = "a', "Unterminated string"),
        (key(SHA) + "[other]\n", "unknown key 'other'"),
        ("[[ke", r"line 1: TOML needs a header"),
        ("[", r"line 1: TOML needs a header"),
        ("[key]\nname = 'a'\n", r"line 1: TOML needs a header \[\[key\]\]"),
        ('# x\nname = "a"\n', r"line 2: TOML needs a header"),
        (key(SHA, "x = " + "[" * 5000), "recursion|nested"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(KeyFileError, match=message):
        parse_keys(text)


def test_the_old_form_stays_readable() -> None:
    plain, admin = parse_keys("# comment\n\nplain\nboss admin\n")
    assert plain.scopes == {"infer", "metrics"}
    assert admin.scopes == {"infer", "metrics", "admin"}
    assert admin.name == digest("boss").hex()[:12]
    assert parse_keys("") == ()


async def test_a_broken_file_keeps_the_old_keys_and_is_logged_once_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(WHOLE)
    ring = open_ring([], [str(path)])
    path.write_text(WHOLE + "[[key]]\nname = 3\n")
    for _ in range(3):
        await ring.refresh()
        assert ring.find("secret") is not None
    refused = [one for one in caplog.records if one.getMessage() == "key file refused"]
    assert len(refused) == 1
    assert refused[0].levelno == logging.ERROR
    assert "line 18" in caplog.text
    path.write_text(WHOLE.replace("in clear", "another"))
    await ring.refresh()
    assert ring.find("another") is not None
    assert ring.find("in clear") is None


async def test_two_files_may_not_contradict_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(WHOLE)
    second.write_text("")
    ring = open_ring([], [str(first), str(second)])
    second.write_text('[[key]]\nname = "alice"\nkey = "x"\n')
    await ring.refresh()
    assert ring.find("x") is None
    assert "two keys have the name 'alice'" in caplog.text
    with pytest.raises(ConfigError, match="alice"):
        open_ring([], [str(first), str(second)])


@pytest.mark.slow
async def test_keys_are_found_among_ten_thousand_and_read_beside_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    tables = [
        f'[[key]]\nname = "k{i}"\nsha256 = "{digest(f"s{i}").hex()}"\n' for i in range(10_000)
    ]
    path.write_text("".join(tables))
    ring = open_ring([], [str(path)])
    assert ring.n_keys == 10_000
    found = [ring.find(f"s{i}") for i in range(0, 10_000, 100)]
    assert [one.name for one in found if one] == [f"k{i}" for i in range(0, 10_000, 100)]
    path.write_text("".join(tables[1:]))
    turns = 0
    reading = asyncio.ensure_future(ring.refresh())
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10
    assert ring.find("s0") is None


def test_a_path_may_name_the_folder_of_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("one\n")
    with pytest.raises(ConfigError, match="has set no CREDENTIALS_DIRECTORY"):
        open_ring([], ["$CREDENTIALS_DIRECTORY/keys"])
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    ring = open_ring([], ["/etc/llamapool/$CREDENTIALS_DIRECTORY/keys"])
    assert ring.find("one") is not None


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 32 MiB"):
        open_ring([], ["/dev/zero"])


async def test_a_pipe_in_place_of_a_file_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(WHOLE)
    ring = open_ring([], [str(path)])
    path.unlink()
    os.mkfifo(path)
    for _ in range(3):
        await asyncio.wait_for(ring.refresh(), 5)
        assert ring.find("secret") is not None
    assert caplog.text.count("is a pipe now, and was a file") == 1
    path.unlink()
    path.mkdir()
    await ring.refresh()
    assert "Is a directory" in caplog.text
    assert ring.find("secret") is not None


async def test_a_pipe_of_a_shell_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.named_file._PIPE_LIMIT_S", 0.05)
    end, start = os.pipe()
    os.write(start, WHOLE.encode())
    os.close(start)
    ring = open_ring([], [f"/dev/fd/{end}"])
    os.close(end)
    assert ring.find("secret") is not None
    await ring.refresh()
    assert ring.find("secret") is not None
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="a pipe that nobody has written"):
        open_ring([], [str(tmp_path / "pipe")])


def held_reading(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the next readings begin, which sets the first event, and end when the second is set."""
    reads, may_read = threading.Event(), threading.Event()

    def slow(text: str) -> tuple[ApiKey, ...]:
        reads.set()
        assert may_read.wait(10)
        return parse_keys(text)

    monkeypatch.setattr("gateway.keys.ring.parse_keys", slow)
    return reads, may_read


async def test_who_waits_for_a_slow_file_goes_on_with_the_keys_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(WHOLE)
    ring = open_ring([], [str(path)])
    monkeypatch.setattr("gateway.keys.ring._READ_LIMIT_S", 0.02)
    _, may_read = held_reading(monkeypatch)
    path.write_text(WHOLE.replace("in clear", "another"))
    await asyncio.wait_for(asyncio.gather(*(ring.refresh() for _ in range(5))), 5)
    assert ring.find("another") is None and ring.find("secret") is not None
    monkeypatch.setattr("gateway.keys.ring._READ_LIMIT_S", 60)
    await asyncio.wait_for(ring.refresh(), 5)  # nobody waits a second time
    may_read.set()
    await until(lambda: ring.find("another") is not None)


async def test_a_request_that_comes_while_a_file_is_read_waits_for_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(WHOLE)
    ring = open_ring([], [str(path)])
    reads, may_read = held_reading(monkeypatch)
    path.write_text(WHOLE.replace("in clear", "another"))
    first = asyncio.create_task(ring.refresh())
    await until(reads.is_set)
    second = asyncio.create_task(ring.refresh())
    await asyncio.sleep(0)
    assert not second.done()
    may_read.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    assert ring.find("another") is not None


async def test_a_file_that_cannot_even_be_looked_at_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system hung, and with the loop all requests did."""
    path = tmp_path / "keys.toml"
    path.write_text(WHOLE)
    ring = open_ring([], [str(path)])
    monkeypatch.setattr("gateway.keys.ring._READ_LIMIT_S", 0.02)
    looks, may_look, look = threading.Event(), threading.Event(), KeyFile._look

    def hung(file: KeyFile) -> tuple[int, ...]:
        looks.set()
        assert may_look.wait(10)
        return look(file)

    monkeypatch.setattr(KeyFile, "_look", hung)
    path.write_text(WHOLE.replace("in clear", "another"))
    await asyncio.wait_for(asyncio.gather(*(ring.refresh() for _ in range(5))), 5)
    assert looks.is_set() and ring.find("secret") is not None
    monkeypatch.setattr("gateway.keys.ring._READ_LIMIT_S", 60)
    await asyncio.wait_for(ring.refresh(), 5)  # nobody waits a second time
    may_look.set()
    await until(lambda: ring.find("another") is not None)


async def test_requests_share_a_look_only_if_it_begins_after_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(WHOLE)
    ring = open_ring([], [str(path)])
    looks, may_look, look, n_looks = threading.Event(), threading.Event(), KeyFile._look, 0

    def slow(file: KeyFile) -> tuple[int, ...]:
        nonlocal n_looks
        n_looks += 1
        found = look(file)
        looks.set()
        assert may_look.wait(10)
        return found

    monkeypatch.setattr(KeyFile, "_look", slow)
    early = asyncio.create_task(ring.refresh())
    await until(looks.is_set)
    path.write_text(WHOLE.replace("in clear", "another"))
    late = [asyncio.create_task(ring.refresh()) for _ in range(5)]
    await asyncio.sleep(0)
    may_look.set()
    await asyncio.wait_for(asyncio.gather(early, *late), 10)
    assert ring.find("another") is not None
    assert n_looks == 3, "one in vain, and one before what was read"


def test_a_key_that_expires_says_when() -> None:
    (one,) = parse_keys(key(SHA, "expires = 2026-01-01T12:00:00+02:00"))
    assert one.expires_at == dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC).timestamp() < time.time()
