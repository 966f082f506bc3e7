"""Folder, preset file, flags and environment put together."""

from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import GatewayConfig, PoolConfig, WorkerConfig
from protocol.errors import ConfigError
from tests.worker.hosts import flat
from worker.models.catalog import Catalog, CatalogEntry, open_catalog
from worker.settings.resolve import resolve


def catalog(
    folder: Path,
    ini: str = "",
    *files: str,
    flags: dict[str, Any] | None = None,
    base: WorkerConfig | None = None,
    **gateway: Any,
) -> Catalog:
    models = folder / "models"
    models.mkdir(exist_ok=True)
    for name in files:
        (models / name).touch()
    preset = folder / "models.ini"
    preset.write_text(ini)
    config = GatewayConfig(models_dir=str(models), models_preset=str(preset), **gateway)
    pool = PoolConfig(gateway=config, worker=(base or WorkerConfig(),))
    return open_catalog(pool, flags or {})


def only(found: Catalog) -> CatalogEntry:
    (entry,) = found.entries.values()
    return entry


def test_flags_beat_the_section_and_that_beats_the_section_for_all(tmp_path: Path) -> None:
    ini = "[*]\nc = 1\nb = 100\nt = 1\n[a]\nc = 2\nb = 200\n"
    base = WorkerConfig(n_ctx=9, n_batch=900, n_threads=9, n_ubatch=90)
    found = catalog(tmp_path, ini, "a.gguf", flags={"worker.n_ctx": 3}, base=base)
    (worker,) = only(found).workers
    assert (worker.n_ctx, worker.n_batch, worker.n_threads, worker.n_ubatch) == (3, 200, 1, 90)
    assert worker.model == f"{tmp_path}/models/a.gguf"


def test_the_repository_of_a_preset_is_not_that_of_its_models(tmp_path: Path) -> None:
    flags = {"worker.hf_repo": "u/presets", "worker.n_ctx": 3}
    (worker,) = only(catalog(tmp_path, "[a]\nhf = u/a\n", flags=flags)).workers
    assert (worker.hf_repo, worker.n_ctx) == ("u/a", 3)


def test_files_and_sections_are_models(tmp_path: Path) -> None:
    found = catalog(tmp_path, "[b]\nm = b.gguf\n[a]\nalias = x, y\ntags = t\n", "a.gguf", "c.gguf")
    infos = {name: entry.info for name, entry in found.entries.items()}
    assert {name: info.source for name, info in infos.items()} == {
        "a": "preset",
        "b": "preset",
        "c": "models_dir",
    }
    assert (infos["a"].aliases, infos["a"].tags) == (("x", "y"), ("t",))
    assert infos["c"].args == (
        *("llamapool", "worker", "--alias", "c", "--model", f"{tmp_path}/models/c.gguf"),
    )
    assert found.entries["b"].workers[0].model == str(Path.cwd() / "b.gguf")


def test_what_a_process_gets_is_already_resolved(tmp_path: Path) -> None:
    found = catalog(tmp_path, "[a]\nworkers = 2\n", "a.gguf", base=WorkerConfig(backend="fake"))
    pool = found.config_of(only(found))
    again = resolve(pool, runtime_dir=str(tmp_path), host=flat(2))
    assert [worker.name for worker in again.worker] == ["a-1", "a-2"]
    assert [worker.alias for worker in again.worker] == ["a", "a"]


def test_a_process_gets_no_keys_of_clients(tmp_path: Path) -> None:
    found = catalog(tmp_path, "", "a.gguf", api_key=("secret",))
    assert "secret" not in repr(found.config_of(only(found)))


def test_processes_have_names_of_their_own(tmp_path: Path) -> None:
    found = catalog(tmp_path, "", "a b.gguf", "a-b.gguf")
    names = [worker.name for entry in found.entries.values() for worker in entry.workers]
    assert names == ["a-b-1", "a-b.2-1"]


def test_what_only_presets_say_is_kept(tmp_path: Path) -> None:
    ini = "[*]\nstop-timeout = 3\n[a]\nload-on-startup = true\n"
    found = catalog(tmp_path, ini, "a.gguf", "b.gguf").entries
    assert [(e.load_on_startup, e.stop_timeout_s) for e in found.values()] == [
        (True, 3.0),
        (False, 3.0),
    ]


def test_a_changed_model_has_another_stamp(tmp_path: Path) -> None:
    found = catalog(tmp_path, "[a]\nc = 1\n", "a.gguf", "b.gguf")
    before = {name: entry.info.stamp for name, entry in found.entries.items()}
    (tmp_path / "models.ini").write_text("[a]\nc = 2\n")
    found.read()
    after = {name: entry.info.stamp for name, entry in found.entries.items()}
    assert [before[name] == after[name] for name in ("a", "b")] == [False, True]


def test_a_mistake_at_a_reload_keeps_the_old_list(tmp_path: Path) -> None:
    found = catalog(tmp_path, "", "a.gguf")
    (tmp_path / "models.ini").write_text("[a]\nno-such = 1\n")
    with pytest.raises(ConfigError, match=r"models.ini: \[a\]: no-such: no such option"):
        found.read()
    assert list(found.entries) == ["a"]


@pytest.mark.parametrize(
    ("ini", "words"),
    [
        ("[a]\nalias = b\n", "model name 'b' is also an alias of model 'a': change one"),
        ("[*]\nalias = z\n", "alias 'z' of model 'b' is also one of model 'a': change one"),
        (
            "[*]\nload-on-startup = true\n",
            r"number of models to load on startup \(2\) exceeds models_max \(1\)",
        ),
    ],
)
def test_what_cannot_work_ends_the_start(tmp_path: Path, ini: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        catalog(tmp_path, ini, "a.gguf", "b.gguf", models_max=1)


def test_a_name_with_a_comma_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert list(catalog(tmp_path, "", "a,b.gguf", "c.gguf").entries) == ["c"]
    assert "comma" in caplog.text


def test_a_section_without_a_model_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """People write `[default]` for `[*]`, and llama-server starts."""
    assert list(catalog(tmp_path, "[default]\nc = 1\n", "a.gguf").entries) == ["a"]
    assert "model not listed model=default" in caplog.text


def test_no_models_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not catalog(tmp_path).entries
    assert f"no models found file={tmp_path}" in caplog.text


def test_a_preset_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = GatewayConfig(models_preset=f"{tmp_path}/no.ini")
    with pytest.raises(ConfigError, match=r"cannot read models_preset .*no\.ini"):
        open_catalog(PoolConfig(gateway=config), {})
