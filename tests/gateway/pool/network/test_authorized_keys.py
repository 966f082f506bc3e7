"""Whatever lies in the folder of keys, the keys beside it count, and nobody waits."""

import errno
import os
import time
from pathlib import Path

import pytest
import zmq

from gateway.pool.network.authorized_keys import AuthorizedKeys
from protocol.curve import public_text


def key_in(folder: Path, name: str) -> str:
    key = zmq.curve_keypair()[0].decode()
    (folder / f"{name}.pub").write_text(public_text(key))
    return key


def loop(path: Path) -> None:
    path.symlink_to(path)


def zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [loop, zero, Path.mkdir, os.mkfifo], ids=lambda one: one.__name__)
def test_an_odd_file_neither_stops_the_loop_nor_hides_the_others(
    tmp_path: Path, make: object
) -> None:
    assert callable(make)
    first, second = key_in(tmp_path, "first"), key_in(tmp_path, "second")
    keys = AuthorizedKeys(tmp_path)
    keys.read()
    started_at = time.monotonic()
    make(tmp_path / "odd.pub")
    (tmp_path / "first.pub").unlink()
    assert keys.refresh()
    assert keys.get(first) is None and keys.get(second) is not None
    third = key_in(tmp_path, "third")
    assert keys.refresh() and keys.get(third) is not None
    assert not keys.refresh(), "the odd file is complained of once"
    assert time.monotonic() - started_at < 10


def test_a_file_that_may_not_be_looked_at_does_not_stop_the_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that may be listed and not entered."""
    keys = AuthorizedKeys(tmp_path)
    keys.read()
    key_in(tmp_path, "odd")
    first = key_in(tmp_path, "first")
    look = Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        if path.name == "odd.pub":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    assert keys.refresh()
    assert keys.get(first) is not None


def test_secret_keys_among_the_public_ones_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key_in(tmp_path, "first")
    keys = AuthorizedKeys(tmp_path)
    keys.read()
    assert "secret" not in caplog.text
    for name in ("a.key", "b.key"):
        (tmp_path / name).write_text("secret")
        keys.refresh()
        keys.refresh()
    found = [one.__dict__ for one in caplog.records if one.message == "secret key ignored"]
    assert [one["file"].name for one in found] == ["a.key", "b.key"]
    assert len(keys) == 1
