"""The process that fetches a model for the supervisor, with a stand-in for the hub's package."""

import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError
from worker.models.download import BEGIN_S, download

INI = "preset.ini"
NAMES = ["README.md", "m-F16.gguf", "mmproj-m.gguf"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "T")
    yield
    signal.alarm(0)


def put_hub(monkeypatch: pytest.MonkeyPatch, get: Any) -> None:
    hub = types.ModuleType("huggingface_hub")
    vars(hub)["list_repo_files"] = lambda repo, token: NAMES
    vars(hub)["hf_hub_download"] = get
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def said(name: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    download(name, lambda **fields: lines.append(fields))
    return lines


def test_the_progress_of_each_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(repo: str, name: str, *, token: str, cache_dir: str, tqdm_class: Any) -> str:
        assert (repo, token) == ("u/m", "T")
        with tqdm_class(unit="B", total=10, initial=2, desc=name) as bar:
            bar.update(3)
            bar.set_description("nothing comes of this")
            bar.update(5)
        return f"{cache_dir}/{name}"

    put_hub(monkeypatch, get)
    started, *told = said("u/m:F16")
    assert started == {}
    for file in NAMES[1:]:
        of_file = [one for one in told if one["file"] == file]
        assert of_file[0] == {"file": file, "done": 5, "total": 10}
        assert of_file[-1] == {"file": file, "done": 10, "total": 10}


def test_an_older_package_tells_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(repo: str, name: str, *, token: str, cache_dir: str) -> str:
        return name

    put_hub(monkeypatch, get)
    assert said("u/m:F16") == [{}]


def test_what_is_not_in_the_repository_fails_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_hub(monkeypatch, None)
    with pytest.raises(ConfigError, match="no GGUF file of Q2_K"):
        said("u/m:Q2_K")


def test_a_repository_of_presets_says_how_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    put_hub(monkeypatch, None)
    monkeypatch.setattr(sys.modules["huggingface_hub"], "list_repo_files", lambda *_, **__: [INI])
    with pytest.raises(ConfigError, match=r"no GGUF file in it, but a preset.ini: .* serve -hf"):
        said("u/presets")


def test_a_hub_that_does_not_answer_is_given_up_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wait(repo: str, token: str) -> list[str]:
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= BEGIN_S
        signal.raise_signal(signal.SIGALRM)
        return NAMES

    put_hub(monkeypatch, lambda repo, name, **_: name)
    monkeypatch.setattr(sys.modules["huggingface_hub"], "list_repo_files", wait)
    with pytest.raises(ConfigError, match="cannot fetch u/m: the hub did not answer within 60 s"):
        said("u/m")
    monkeypatch.setattr(sys.modules["huggingface_hub"], "list_repo_files", lambda *_, **__: NAMES)
    assert said("u/m")[0] == {}
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0, "files may take as long as they need"
