"""Files of a command line that are pipes, folders, devices, too large or no text."""

import os
import threading
from pathlib import Path

import pytest

from protocol.named_file import read_named_bytes, read_named_text


def test_a_file_is_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_bytes("a = 'ä'\r\nb = 2\r".encode())
    assert read_named_text(path) == "a = 'ä'\nb = 2\n"
    assert read_named_bytes(path, 17) == path.read_bytes()


def test_what_has_no_end_or_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="it has more than 16 MiB"):
        read_named_text(Path("/dev/zero"))
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has more than 2 KiB"):
        read_named_text(large, 2048)


def test_folders_missing_files_and_what_is_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        read_named_text(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_named_text(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xe4")
    with pytest.raises(OSError, match="it is no UTF-8 text"):
        read_named_text(tmp_path / "latin")


def test_a_pipe_of_a_shell_is_read_to_its_end() -> None:
    end, start = os.pipe()
    writer = threading.Thread(target=_write, args=(start, [b"a" * 65_536, b"b"]))
    writer.start()
    assert read_named_text(Path(f"/dev/fd/{end}")) == "a" * 65_536 + "b"
    writer.join()
    os.close(end)


def test_a_named_pipe_waits_for_whoever_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("a = 1",))
    writer.start()
    assert read_named_text(path) == "a = 1"
    writer.join()


def test_a_pipe_that_nobody_writes_or_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.named_file._PIPE_LIMIT_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError, match=r"nobody has written to its end in 0\.05 s"):
        read_named_text(tmp_path / "pipe")
    end, start = os.pipe()
    os.write(start, b"half")
    with pytest.raises(TimeoutError, match=r"nobody has written to its end in 0\.05 s"):
        read_named_text(Path(f"/dev/fd/{end}"))
    os.close(start)
    os.close(end)


def _write(fd: int, parts: list[bytes]) -> None:
    with os.fdopen(fd, "wb") as file:
        for part in parts:
            file.write(part)
