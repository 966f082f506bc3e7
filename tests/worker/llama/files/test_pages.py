"""Pages of a mapped file that nobody needs any more."""

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.config.config import WorkerConfig
from tests.worker.conftest import model_path
from worker.llama.files import pages

N_BYTES = 8 << 20


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[tuple[Path, mmap.mmap]]:
    """A file of random bytes, mapped as llama.cpp maps a model."""
    path = tmp_path / "m.gguf"
    path.write_bytes(os.urandom(N_BYTES))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        yield path, data


def resident(path: Path) -> int:
    """Bytes of a file in this process's memory."""
    text = Path("/proc/self/smaps").read_text()
    blocks = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", text)
    found = (re.search(r"Rss: +(\d+)", one) for one in blocks if str(path) in one)
    return sum(int(one[1]) << 10 for one in found if one)


def touch(data: mmap.mmap, at: int = 0, step: int = mmap.PAGESIZE) -> None:
    for i in range(at, len(data), step):
        data[i]


def test_what_was_read_is_dropped_and_comes_back(mapped: tuple[Path, mmap.mmap]) -> None:
    path, data = mapped
    before = data[:]
    assert resident(path) == N_BYTES
    assert pages.forget([path]) == N_BYTES
    assert resident(path) == 0
    assert data[:] == before
    assert resident(path) == N_BYTES


def test_a_touch_brings_little_beside_what_it_wants(mapped: tuple[Path, mmap.mmap]) -> None:
    path, data = mapped
    touch(data)
    pages.forget([path])
    touch(data, at=N_BYTES // 16, step=N_BYTES // 8)
    assert 0 < resident(path) <= 8 * 2 * (64 << 10)


def test_other_files_stay(mapped: tuple[Path, mmap.mmap]) -> None:
    path, data = mapped
    touch(data)
    assert pages.forget([path.with_name("other.gguf")]) == 0
    assert resident(path) == N_BYTES


def test_a_file_may_be_forgotten_again_and_by_another_name(
    mapped: tuple[Path, mmap.mmap], tmp_path: Path
) -> None:
    path, data = mapped
    link = tmp_path / "link to it.gguf"
    link.symlink_to(path)
    for _ in range(2):
        touch(data)
        assert pages.forget([link, path]) == N_BYTES
        assert resident(path) == 0


def test_without_a_list_of_mappings_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "_MAPS", tmp_path / "none")
    assert pages.forget([tmp_path]) == 0


@pytest.mark.model
def test_a_model_that_was_loaded_and_not_used_is_hardly_resident() -> None:
    from worker.llama.model import load

    path = Path(model_path()).resolve()
    loaded = load(WorkerConfig(model=str(path), n_ctx=256, use_mmap=True), lambda _: None)
    assert str(path) in Path("/proc/self/maps").read_text()
    assert resident(path) < path.stat().st_size / 10
    loaded.close()
