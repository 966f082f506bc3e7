"""`file://` URLs stay below the folder of --media-path."""

import os
from pathlib import Path

import pytest

from gateway.media.files import read_file
from gateway.media.loader import MediaLoader
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.png").write_bytes(b"a")
    (folder / "sub" / "b c.png").write_bytes(b"b")
    (folder / "large").write_bytes(bytes(101))
    (folder / "inside").symlink_to(folder / "a.png")
    (folder / "outside").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe")
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "media2").mkdir()
    (tmp_path / "media2" / "a.png").write_bytes(b"2")
    return folder


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.png", b"a"), ("sub/b c.png", b"b"), ("inside", b"a"), ("sub/../a.png", b"a")],
)
def test_a_file_below_the_folder_is_read(folder: Path, name: str, data: bytes) -> None:
    assert read_file(folder, f"file://{name}", 100) == data


@pytest.mark.parametrize("name", ["/a.png", "//sub//b c.png", "sub//b c.png"])
def test_slashes_too_many_are_as_one_below_the_folder(folder: Path, name: str) -> None:
    assert read_file(folder, f"file://{name}", 100) in (b"a", b"b")


def test_an_absolute_name_is_looked_for_below_the_folder(folder: Path) -> None:
    with pytest.raises(ValueError, match="does not exist or cannot be opened"):
        read_file(folder, f"file://{folder.parent}/secret", 100)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "//",
        "//../secret",
        "/up/secret",
        "//outside",
        "../secret",
        "../media2/a.png",
        "outside",
        "up/secret",
        "a\0",
        "x" * 300,
    ],
)
def test_no_name_and_no_link_leads_out_of_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="file path is not allowed"):
        read_file(folder, f"file://{name}", 100)


@pytest.mark.parametrize("name", ["none.png", "sub", "pipe", "loop", "a.png/b"])
def test_what_is_no_file_cannot_be_opened(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="does not exist or cannot be opened"):
        read_file(folder, f"file://{name}", 100)


def test_a_file_that_is_too_large_is_not_read(folder: Path) -> None:
    with pytest.raises(ValueError, match="larger than"):
        read_file(folder, "file://large", 100)


def test_the_folder_may_itself_be_a_link(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    assert read_file(folder.parent / "link", "file://a.png", 100) == b"a"


def test_a_folder_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--media-path .* is not a directory"):
        MediaLoader(GatewayConfig(media_path=str(tmp_path / "none")))
