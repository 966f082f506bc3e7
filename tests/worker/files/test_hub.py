"""Models of a repository: fetched by the hub's package, or found where they were fetched before."""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.errors import ConfigError
from worker.cli import main
from worker.doctor.case import DoctorOptions, opened
from worker.files.hub import pick_file, pick_projector
from worker.files.hub_cache import cache_folder, cached_models, snapshot
from worker.settings.download import fetched, with_remote_preset

COMMIT = "0123456789" * 4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the models of the person who runs the tests out."""
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


def fill(cache: Path, repo: str, *names: str, ref: str = "main") -> Path:
    """Put files where the hub's package and llama-server would have put them."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    for name in names:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(b"GGUF")
    (folder / "refs").mkdir()
    (folder / "refs" / ref).write_text(f"{COMMIT}\n")
    return snapshot


def put_hub(monkeypatch: pytest.MonkeyPatch, names: Any) -> list[tuple[str, str, str | None]]:
    """Stand in for the package; return what it is asked for."""
    seen: list[tuple[str, str, str | None]] = []
    hub = types.ModuleType("huggingface_hub")

    def download(repo: str, name: str, *, token: str | None, cache_dir: str) -> str:
        assert cache_dir == str(cache_folder({"LLAMA_CACHE": cache_dir}))
        seen.append((repo, name, token))
        return f"/cache/{name}"

    vars(hub)["list_repo_files"] = lambda repo, token: names()
    vars(hub)["hf_hub_download"] = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return seen


@pytest.mark.usefixtures("no_package")
def test_fetching_needs_an_extra_that_the_message_names() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'llamapool\[hub\]'"):
        fetched(WorkerConfig(hf_repo="user/model"))


def test_the_hubs_package_fetches_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = put_hub(monkeypatch, lambda: ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf"])
    assert fetched(WorkerConfig(hf_repo="u/m:q8_0", hf_token="T")).model == "/cache/m-Q8_0.gguf"
    fetched(WorkerConfig(hf_repo="u/m", hf_file="x.gguf"))
    assert seen == [("u/m", "m-Q8_0.gguf", "T"), ("u/m", "x.gguf", None)]
    with pytest.raises(ConfigError, match="no GGUF file of Q2_K"):
        fetched(WorkerConfig(hf_repo="u/m:Q2_K"))


def test_a_preset_in_a_repository_stands_for_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = put_hub(monkeypatch, lambda: ["m-Q8_0.gguf", "preset.ini"])
    pool = PoolConfig(worker=(WorkerConfig(hf_repo="u/m:Q8_0", hf_token="T", n_ctx=512),))
    found = with_remote_preset(pool)
    assert found.gateway.models_preset == "/cache/preset.ini"
    assert found.worker == (WorkerConfig(hf_token="T", n_ctx=512),)
    assert seen == [("u/m", "preset.ini", "T")]
    put_hub(monkeypatch, lambda: ["m-Q8_0.gguf", "more/preset.ini"])
    assert with_remote_preset(pool) == pool
    assert with_remote_preset(PoolConfig(worker=(WorkerConfig(model="m"),))).worker[0].model == "m"


@pytest.mark.usefixtures("no_package")
def test_a_preset_that_was_fetched_before_needs_no_network(cache: Path) -> None:
    snapshot = fill(cache, "u/m", "preset.ini")
    pool = PoolConfig(worker=(WorkerConfig(hf_repo="u/m", offline=True),))
    assert with_remote_preset(pool).gateway.models_preset == f"{snapshot}/preset.ini"
    pool = PoolConfig(worker=(WorkerConfig(hf_repo="u/m"),))
    found = with_remote_preset(pool, fetches=False)
    assert found.gateway.models_preset == f"{snapshot}/preset.ini"
    fill(cache, "u/n", "m-Q8_0.gguf")
    pool = PoolConfig(worker=(WorkerConfig(hf_repo="u/n"),))
    assert with_remote_preset(pool) == pool


@pytest.mark.usefixtures("no_package")
def test_config_show_and_doctor_know_a_preset_that_was_fetched_before(cache: Path) -> None:
    preset = fill(cache, "u/m", "preset.ini") / "preset.ini"
    preset.write_text("[a]\nhf-repo = u/a\n")
    shown = CliRunner().invoke(main, ["config", "show", "-hf", "u/m"])
    assert f'models_preset = "{preset}"' in shown.stdout
    pool = PoolConfig(worker=(WorkerConfig(hf_repo="u/m"),))
    case = opened(pool, "", cache, DoctorOptions(loads=False))
    assert (case.pool.gateway.models_preset, case.fault) == (str(preset), "")


def test_what_is_only_shown_asks_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = put_hub(monkeypatch, lambda: ["preset.ini"])
    pool = PoolConfig(worker=(WorkerConfig(hf_repo="u/m"),))
    assert with_remote_preset(pool, fetches=False) == pool
    assert not seen


def test_the_hub_lists_the_files_of_a_repository_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = iter([["m-Q8_0.gguf", "mmproj-m.gguf"]])
    put_hub(monkeypatch, lambda: next(lists))
    assert fetched(WorkerConfig(hf_repo="u/m")).mmproj == "/cache/mmproj-m.gguf"


def test_the_projector_comes_with_the_model_unless_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["a/m-Q8_0.gguf", "a/mmproj-BF16.gguf", "b/mmproj-Q8_0.gguf", "mmproj-Q8_0.gguf"]
    put_hub(monkeypatch, lambda: names)
    worker = WorkerConfig(hf_repo="u/m")
    assert fetched(worker).mmproj == "/cache/a/mmproj-BF16.gguf"
    assert fetched(WorkerConfig(hf_repo="u/m", mmproj_auto=False)).mmproj == ""
    assert fetched(WorkerConfig(hf_repo="u/m", mmproj="own.gguf")).mmproj == "own.gguf"


def test_all_parts_of_a_split_model_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"m-Q8_0-0000{i}-of-00003.gguf" for i in (3, 1, 2)]
    seen = put_hub(monkeypatch, lambda: names)
    assert fetched(WorkerConfig(hf_repo="u/m")).model == "/cache/m-Q8_0-00001-of-00003.gguf"
    assert sorted(name for _, name, _ in seen) == sorted(names)


def test_a_draft_model_has_a_repository_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = put_hub(monkeypatch, lambda: ["m-Q8_0.gguf", "small.gguf"])
    worker = WorkerConfig(model="m.gguf", hf_repo_draft="u/d", model_draft="small.gguf")
    done = fetched(worker)
    assert (done.model, done.model_draft, done.hf_repo_draft) == ("m.gguf", "/cache/small.gguf", "")
    assert seen == [("u/d", "small.gguf", None)]


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize("fields", [{"offline": True}, {}], ids=["offline", "without-the-package"])
def test_what_was_fetched_before_starts_without_network_and_package(
    cache: Path, fields: Mapping[str, Any]
) -> None:
    snapshot = fill(cache, "u/m", "m-Q8_0.gguf", "m-Q4_0.gguf", "mmproj-m.gguf", "deep/d.gguf")
    done = fetched(WorkerConfig(hf_repo="u/m", **fields))
    assert done.model == str(snapshot / "m-Q8_0.gguf")
    assert done.mmproj == str(snapshot / "mmproj-m.gguf")
    deep = fetched(WorkerConfig(hf_repo="u/m", hf_file="deep/d.gguf", **fields))
    assert deep.model == str(snapshot / "deep" / "d.gguf")
    with pytest.raises(ConfigError, match="it is not here, and the network is not used"):
        fetched(WorkerConfig(hf_repo="u/m", hf_file="other.gguf", **fields))


@pytest.mark.usefixtures("no_package")
def test_what_was_never_fetched_is_not_said_to_be_without_a_model(cache: Path) -> None:
    said = "cannot fetch u/m.*: it is not here, and the network is not used"
    for repo in ("u/m", "u/m:Q2_K"):
        with pytest.raises(ConfigError, match=said):
            fetched(WorkerConfig(hf_repo=repo, offline=True))
    fill(cache, "u/m", "m-Q8_0.gguf")
    with pytest.raises(ConfigError, match=said):
        fetched(WorkerConfig(hf_repo="u/m:Q2_K", offline=True))


def test_without_a_network_what_was_fetched_before_is_taken(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> list[str]:
        raise OSError("no route to host")

    put_hub(monkeypatch, unreachable)
    with pytest.raises(ConfigError, match="cannot fetch u/m: no route to host"):
        fetched(WorkerConfig(hf_repo="u/m"))
    snapshot = fill(cache, "u/m", "m.gguf", ref="other")
    assert fetched(WorkerConfig(hf_repo="u/m")).model == str(snapshot / "m.gguf")
    with pytest.raises(ConfigError, match="u/m:Q2_K: it is not here, and no route to host"):
        fetched(WorkerConfig(hf_repo="u/m:Q2_K"))


def test_the_models_at_hand_are_listed_as_llama_server_lists_them(cache: Path) -> None:
    fill(cache, "u/m", "m-q8_0.gguf", "mmproj-F16.gguf", "m-Q4_0-00001-of-00002.gguf")
    fill(cache, "u/other", "README.md")
    (cache / "models--u--broken").mkdir()
    assert cached_models({"LLAMA_CACHE": str(cache)}) == ["u/m:Q4_0", "u/m:Q8_0"]


def test_the_cache_lies_where_llama_cpp_looks_for_it() -> None:
    assert cache_folder({"HF_HOME": "/h", "HOME": "/me"}) == Path("/h/hub")
    assert cache_folder({"HOME": "/me"}) == Path("/me/.cache/huggingface/hub")
    assert cache_folder({"LLAMA_CACHE": "/c", "HF_HUB_CACHE": "/h"}) == Path("/c")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # no such user
    with pytest.raises(ConfigError, match="no home folder: set HF_HOME"):
        cache_folder({})
    assert cached_models({}) == []


def test_a_file_is_picked_by_quantization() -> None:
    names = ["a-Q8_0.gguf", "a-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf", "x.txt"]
    assert pick_file(names, "") == "a-Q4_K_M.gguf"
    assert pick_file([names[0], "a-F16.gguf"], "") == "a-Q8_0.gguf"
    assert pick_file(names, "Q8_0") == "a-Q8_0.gguf"
    assert pick_file(["b.gguf"], "") == "b.gguf"
    with pytest.raises(ValueError, match="no GGUF file"):
        pick_file(["x.txt"], "")


def test_the_nearest_projector_of_the_nearest_size_is_picked() -> None:
    names = ["mmproj-F32.gguf", "mmproj-Q8_0.gguf", "x/mmproj-Q8_0.gguf"]
    assert pick_projector(names, "m-Q8_0.gguf") == "mmproj-Q8_0.gguf"
    assert pick_projector(names, "m-BF16.gguf") == "mmproj-Q8_0.gguf"
    assert pick_projector(names, "x/m-F16.gguf") == "x/mmproj-Q8_0.gguf"
    assert pick_projector(["m.gguf"], "m.gguf") == ""


def test_a_repository_whose_name_no_folder_can_have_is_not_in_the_cache(tmp_path: Path) -> None:
    assert snapshot("user/" + "x" * 5000, {"LLAMA_CACHE": str(tmp_path)}) is None
