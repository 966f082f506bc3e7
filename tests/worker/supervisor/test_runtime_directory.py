"""Where runtime directories are made."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from protocol.endpoint import UNIX_PATH_MAX
from protocol.errors import ConfigError
from worker.supervisor.runtime_directory import parents, runtime_directory


def test_a_host_without_a_folder_for_temporary_files_needs_only_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "gettempdir", none)
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        with runtime_directory("") as folder:
            assert folder.parent == Path(short)
    fault = pytest.raises(ConfigError, match=r"cannot make runtime_dir /proc/no: .* or TMPDIR")
    with fault, runtime_directory("/proc/no"):
        pass


def test_a_long_temporary_folder_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert parents() == [Path("/tmp")]
    with runtime_directory("") as folder:
        assert folder.parent == Path("/tmp")
        assert len(f"{folder}/notify-1000-100.sock") < UNIX_PATH_MAX
    assert not folder.exists()


def test_what_others_put_beside_it_neither_stops_a_start_nor_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        for name in ("pipe", "link", "folder", "dead"):
            (Path(short) / f"llamapool-{name}").mkdir()
        os.mkfifo(Path(short) / "llamapool-pipe" / "lock")
        (Path(short) / "llamapool-link" / "lock").symlink_to(tmp_path)
        (Path(short) / "llamapool-folder" / "lock").mkdir()
        (Path(short) / "llamapool-dead" / "lock").touch()
        with runtime_directory("") as folder:
            names = {path.name for path in Path(short).iterdir()} - {folder.name}
    assert names == {"llamapool-link"}


def test_what_a_start_has_left_half_made_is_removed_when_it_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        files = {"old": "", "locking": "lock.new", "new": "", "users": "notes", "open": ""}
        for name, file in files.items():
            path = Path(short) / f"llamapool-{name}"
            path.mkdir(mode=0o755 if name == "open" else 0o700)
            (path / file).touch()
            if name != "new":
                os.utime(path, (0, 0))
        with runtime_directory("") as folder:
            names = {path.name for path in Path(short).iterdir()} - {folder.name}
    assert names == {"llamapool-new", "llamapool-users", "llamapool-open"}


def test_a_folder_that_is_configured_is_taken_however_long(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    with runtime_directory(str(long)) as folder:
        assert folder == long


@pytest.mark.parametrize("is_configured", [False, True])
def test_who_removes_old_files_finds_the_folder_locked(tmp_path: Path, is_configured: bool) -> None:
    with runtime_directory(str(tmp_path / "run") if is_configured else "") as path:
        fd = os.open(path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):  # as systemd-tmpfiles tries it
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
    assert not path.exists()


def test_a_second_pool_in_the_same_folder_is_refused_and_the_first_keeps_its_files(
    tmp_path: Path,
) -> None:
    """Their workers had the same names, and both pools ended."""
    with runtime_directory(str(tmp_path)) as path:
        (path / "pool.json").touch()
        with pytest.raises(ConfigError, match="is that of a pool that runs"):
            runtime_directory(str(tmp_path)).__enter__()
        assert (path / "pool.json").exists()
    with runtime_directory(str(tmp_path)):
        pass
