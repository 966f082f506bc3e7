"""`llamapool pull`, with a stand-in for the hub's package."""

import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from worker.settings.pull import pull

NAMES = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-F16.gguf"]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Put a hub in the place of the package; return the files and tokens that it is asked for."""
    asked: list[tuple[str, str | None]] = []

    def get(repo: str, name: str, *, token: str | None, cache_dir: str) -> str:
        asked.append((name, token))
        return f"/cache/{repo}/{name}"

    hub = types.ModuleType("huggingface_hub")
    vars(hub)["list_repo_files"] = lambda repo, token: NAMES
    vars(hub)["hf_hub_download"] = get
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return asked


@pytest.mark.parametrize(
    ("args", "files"),
    [
        (["u/m"], ["m-Q4_K_M.gguf", "mmproj-m-F16.gguf"]),
        (["u/m:Q8_0", "--no-mmproj"], ["m-Q8_0.gguf"]),
        (["u/m", "--hf-file", "m-Q8_0.gguf", "--no-mmproj"], ["m-Q8_0.gguf"]),
    ],
)
def test_the_model_and_its_projector_are_fetched_and_named(
    seen: list[tuple[str, str | None]], args: list[str], files: list[str]
) -> None:
    result = CliRunner().invoke(pull, args)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"/cache/u/m/{file}" for file in files]
    assert seen == [(file, None) for file in files]


def test_a_preset_is_fetched_in_place_of_models(
    seen: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = sys.modules["huggingface_hub"]
    monkeypatch.setattr(hub, "list_repo_files", lambda repo, token: [*NAMES, "preset.ini"])
    result = CliRunner().invoke(pull, ["u/m"])
    assert result.stdout == "/cache/u/m/preset.ini\n"
    assert "its models are fetched when they are loaded" in result.stderr
    assert seen == [("preset.ini", None)]
    result = CliRunner().invoke(pull, ["u/m", "--hf-file", "m-Q8_0.gguf", "--no-mmproj"])
    assert result.stdout == "/cache/u/m/m-Q8_0.gguf\n"


def test_the_token_goes_to_the_hub(seen: list[tuple[str, str | None]]) -> None:
    CliRunner().invoke(pull, ["u/m", "--no-mmproj"], env={"HF_TOKEN": "T"})
    assert seen == [("m-Q4_K_M.gguf", "T")]


@pytest.mark.usefixtures("seen")
def test_what_is_not_there_ends_with_the_reason() -> None:
    result = CliRunner().invoke(pull, ["u/m:Q2_K"])
    assert result.exit_code == 1
    assert "cannot fetch u/m:Q2_K: no GGUF file of Q2_K in it" in result.stderr


def test_without_the_package_its_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    result = CliRunner().invoke(pull, ["u/m"])
    assert result.exit_code == 1
    assert "pip install 'llamapool[hub]'" in result.stderr
