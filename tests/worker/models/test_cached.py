"""Models of the Hugging Face cache: listed, hidden behind presets, deleted."""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from protocol.config.config import GatewayConfig, PoolConfig
from worker.files.hub_cache import snapshot
from worker.models import cached
from worker.models.cached import delete_cached, scan_cache
from worker.models.catalog import Catalog, open_catalog

COMMIT = "0123456789" * 4
OLDER = "9876543210" * 4


def put(cache: Path, repo: str, *names: str, commit: str = COMMIT) -> Path:
    """Put files there as the hub's package does: links to blobs, of which equal ones are one."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    snapshot = folder / "snapshots" / commit
    for name in names:
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        (folder / "blobs" / link.name).write_bytes(b"GGUF")
        up = "../" * len(link.relative_to(folder).parent.parts)
        link.symlink_to(f"{up}blobs/{link.name}")
    return snapshot


def catalog(folder: Path, ini: str = "", *, is_on: bool = True) -> Catalog:
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models.ini").write_text(ini)
    config = GatewayConfig(
        models_dir=str(folder / "models"),
        models_preset=str(folder / "models.ini"),
        models_cache=is_on,
    )
    return open_catalog(PoolConfig(gateway=config), {}, {"LLAMA_CACHE": str(folder / "cache")})


def listed(found: Catalog) -> dict[str, str]:
    infos = [entry.info for entry in found.entries.values()]
    return {info.name: info.source for info in infos if not info.is_hidden}


def test_a_model_comes_with_its_first_part_and_its_projector(tmp_path: Path) -> None:
    snapshot = put(
        tmp_path, "u/m", "Q4_0/m-Q4_0-00001-of-00002.gguf", "Q4_0/m-Q4_0-00002-of-00002.gguf",
        "m-F16.gguf", "mmproj-m.gguf",
    )  # fmt: skip
    found = {one.name: one for one in scan_cache({"LLAMA_CACHE": str(tmp_path)})}
    assert set(found) == {"u/m:Q4_0", "u/m:F16"}
    assert found["u/m:Q4_0"].model == str(snapshot / "Q4_0" / "m-Q4_0-00001-of-00002.gguf")
    assert found["u/m:F16"].mmproj == str(snapshot / "mmproj-m.gguf")


def test_models_of_the_cache_are_listed_beside_the_others(tmp_path: Path) -> None:
    snapshot = put(tmp_path / "cache", "u/m", "m-F16.gguf", "m-Q8_0.gguf")
    ini = "[u/m:Q8_0]\nc = 512\n[own]\nm = own.gguf\n"
    found = catalog(tmp_path, ini)
    assert listed(found) == {"own": "preset", "u/m:F16": "cache", "u/m:Q8_0": "preset"}
    (worker,) = found.entries["u/m:Q8_0"].workers
    assert (worker.model, worker.n_ctx) == (str(snapshot / "m-Q8_0.gguf"), 512)
    assert listed(catalog(tmp_path, "[own]\nm = own.gguf\n", is_on=False)) == {"own": "preset"}


@pytest.mark.parametrize(
    "ini",
    [
        "[p]\nhf = u/m\nspec-draft-hf = u/draft:F16\ndedup-cache-models = 1\n",
        "[*]\ndedup-cache-models = 1\n[p]\nhf = u/m:Q8_0\nspec-draft-hf = u/draft\n",
        "[p]\nhf = u/m\nhf-file = m-Q8_0.gguf\nspec-draft-hf = u/draft\ndedup-cache-models = on\n",
    ],
)
def test_a_preset_may_hide_the_same_files_of_the_cache(tmp_path: Path, ini: str) -> None:
    put(tmp_path / "cache", "u/m", "m-F16.gguf", "m-Q8_0.gguf")
    put(tmp_path / "cache", "u/draft", "draft-F16.gguf")
    found = catalog(tmp_path, ini)
    assert listed(found) == {"p": "preset", "u/m:F16": "cache"}
    assert "u/draft:F16" in found.entries, "it is hidden, and can be used"
    plain = catalog(tmp_path, ini.replace("dedup-cache-models", "version"))
    assert set(listed(plain)) == {"p", "u/m:F16", "u/m:Q8_0", "u/draft:F16"}


def test_a_quantization_is_deleted_with_what_nothing_else_needs(tmp_path: Path) -> None:
    folder = put(tmp_path, "u/m", "m-F16.gguf", "m-Q8_0.gguf", "mmproj-m.gguf").parent.parent
    put(tmp_path, "u/m", "m-F16.gguf", commit=OLDER)
    environ = {"LLAMA_CACHE": str(tmp_path)}
    delete_cached("u/m:Q8_0", environ)
    assert {one.name for one in scan_cache(environ)} == {"u/m:F16"}
    assert {one.name for one in (folder / "blobs").iterdir()} == {"m-F16.gguf", "mmproj-m.gguf"}
    delete_cached("u/m:F16", environ)
    assert scan_cache(environ) == []
    assert {one.name for one in (folder / "blobs").iterdir()} == {"m-F16.gguf", "mmproj-m.gguf"}
    delete_cached("u/m:F16", environ)
    delete_cached("u/none:F16", environ)


def test_a_file_outside_the_cache_is_not_deleted(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.touch()
    link = put(tmp_path, "u/m", "x.txt") / "m-F16.gguf"
    link.symlink_to(own)
    delete_cached("u/m:F16", {"LLAMA_CACHE": str(tmp_path)})
    assert own.exists()
    assert not link.is_symlink()


@contextlib.contextmanager
def deep_in(folder: Path, depth: int) -> Iterator[None]:
    """Nest folders, deeper than pytest could remove them."""
    here = Path.cwd()
    os.chdir(folder)
    for _ in range(depth):
        Path("d").mkdir()
        os.chdir("d")
    try:
        yield
    finally:
        for _ in range(depth):
            os.chdir("..")
            Path("d").rmdir()
        os.chdir(here)


def test_nothing_is_deleted_where_a_revision_or_the_blobs_are_a_link(tmp_path: Path) -> None:
    environ = {"LLAMA_CACHE": str(tmp_path)}
    snapshot = put(tmp_path, "u/m", "m-F16.gguf")
    outside = tmp_path / "outside"
    snapshot.rename(outside)
    (outside / "m-Q8_0.gguf").touch()
    snapshot.symlink_to(outside)
    with pytest.raises(OSError, match="elsewhere"):
        delete_cached("u/m:Q8_0", environ)
    assert (outside / "m-Q8_0.gguf").exists()
    blobs = put(tmp_path, "u/n", "n-F16.gguf").parent.parent / "blobs"
    shared = blobs.rename(tmp_path / "shared")
    blobs.symlink_to(shared)
    delete_cached("u/n:F16", environ)
    assert (shared / "n-F16.gguf").exists()


def test_a_folder_of_models_may_itself_be_a_link(tmp_path: Path) -> None:
    folder = put(tmp_path, "u/m", "m-F16.gguf").parent.parent
    disk = folder.rename(tmp_path / "disk")
    folder.symlink_to(disk)
    delete_cached("u/m:F16", {"LLAMA_CACHE": str(tmp_path)})
    assert list((disk / "blobs").iterdir()) == []


def test_what_cannot_be_listed_hides_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, "u/m", "m-F16.gguf")
    looped = put(tmp_path, "u/looped", "m-F16.gguf")
    (looped / "self-F16.gguf").symlink_to("self-F16.gguf")
    (looped / "up").symlink_to(looped)
    refs = put(tmp_path, "u/refs", "m-F16.gguf").parent.parent / "refs" / "main"
    refs.write_text(COMMIT + "0" * 100_000)
    with deep_in(put(tmp_path, "u/deep", "m-F16.gguf"), 1001):
        found = scan_cache({"LLAMA_CACHE": str(tmp_path)})
    assert [one.name for one in found] == ["u/deep:F16", "u/looped:F16", "u/m:F16"]


def test_a_repository_that_cannot_be_read_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "u/closed", "m-F16.gguf")
    put(tmp_path, "u/m", "m-F16.gguf")

    def closed(repo: str, environ: Mapping[str, str]) -> Path | None:
        if repo == "u/closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return snapshot(repo, environ)

    monkeypatch.setattr(cached, "snapshot", closed)
    found = scan_cache({"LLAMA_CACHE": str(tmp_path)})
    assert [one.name for one in found] == ["u/m:F16"]


@pytest.mark.slow
def test_a_repository_of_many_files_is_listed_once_through(tmp_path: Path) -> None:
    """It took minutes, because all files were listed anew for each model."""
    folder = put(tmp_path, "u/m", "m-F16.gguf")
    for number in range(2000):
        (folder / f"m-T{number}.gguf").touch()
    assert len(scan_cache({"LLAMA_CACHE": str(tmp_path)})) == 512
