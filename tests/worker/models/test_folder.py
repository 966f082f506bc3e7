"""The models of a folder."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from worker.models.folder import FoundModel, scan


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_every_file_is_a_model_and_nothing_else_is(tmp_path: Path) -> None:
    fill(tmp_path, "b.gguf", "a-Q4_K_M.gguf", "readme.md", "mmproj-b.gguf", "mtp-b.gguf")
    assert scan(tmp_path) == [
        FoundModel("a-Q4_K_M", f"{tmp_path}/a-Q4_K_M.gguf"),
        FoundModel("b", f"{tmp_path}/b.gguf"),
    ]


def test_a_subfolder_is_one_model_with_its_projector(tmp_path: Path) -> None:
    fill(tmp_path, "gemma/model-Q8_0.gguf", "gemma/mmproj-F16.gguf", "gemma/mtp-x.gguf")
    fill(tmp_path, "empty/readme.md", "eye/mmproj-F16.gguf", "a/b/c.gguf")
    folder = tmp_path / "gemma"
    assert scan(tmp_path) == [
        FoundModel("gemma", f"{folder}/model-Q8_0.gguf", f"{folder}/mmproj-F16.gguf")
    ]


def test_a_model_in_parts_is_one(tmp_path: Path) -> None:
    parts = [f"kimi-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    fill(tmp_path, *parts, *(f"sub/{part}" for part in parts), "sub/a.gguf")
    assert scan(tmp_path) == [
        FoundModel("kimi", f"{tmp_path}/{parts[0]}"),
        FoundModel("sub", f"{tmp_path}/sub/{parts[0]}"),
    ]


def test_a_name_that_json_cannot_hold_hides_no_other_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = os.fsdecode(b"\xff\xfe")
    fill(
        tmp_path, f"{bad}.gguf", "good.gguf", f"{bad}/a.gguf", "eye/a.gguf", f"eye/mmproj{bad}.gguf"
    )
    assert [one.name for one in scan(tmp_path)] == ["good"]
    assert [one.getMessage() for one in caplog.records] == ["model not listed"] * 3


def test_a_closed_subfolder_hides_no_other_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, "good.gguf", "lost+found/a.gguf")
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert [one.name for one in scan(tmp_path)] == ["good"]
    assert "models not listed" in caplog.text


def test_a_link_that_leads_nowhere_hides_no_other_model(tmp_path: Path) -> None:
    fill(tmp_path, "good.gguf", "sub/a.gguf")
    for folder in (tmp_path, tmp_path / "sub"):
        (folder / "bad.gguf").symlink_to("x" * 300)  # longer than a name may be
        (folder / "gone.gguf").symlink_to("gone.gguf")
    assert [one.name for one in scan(tmp_path)] == ["good", "sub"]


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models_dir .*/no: No such file"):
        scan(tmp_path / "no")
    fill(tmp_path, "file")
    with pytest.raises(ConfigError, match="Not a directory"):
        scan(tmp_path / "file")
