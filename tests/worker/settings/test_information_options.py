"""Options of `serve` that print something and end."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.worker.files.test_hub import fill
from worker import cli
from worker.host import child
from worker.host.child import ChildOutcome


def printed(*args: str) -> str:
    result = CliRunner().invoke(cli.main, list(args))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What llama.cpp says of itself."""
    facts = {"build": "b1-2", "report": "Available devices:\n  (none)"}
    monkeypatch.setattr(child, "run", lambda *_: ChildOutcome(0, facts))
    return facts


@pytest.mark.parametrize("args", [("--version",), ("serve", "--version")], ids=" ".join)
def test_the_version_names_the_build_of_llama_cpp(
    args: tuple[str, ...], library: dict[str, str]
) -> None:
    first, second = printed(*args).splitlines()
    assert first.startswith("llamapool ") and second == "llama.cpp b1-2"
    library.clear()
    assert "see llamapool doctor" in printed(*args)


@pytest.mark.usefixtures("library")
def test_the_devices_are_listed() -> None:
    assert printed("serve", "--list-devices") == "Available devices:\n  (none)\n"


def test_without_llama_cpp_no_devices_are_listed(library: dict[str, str]) -> None:
    library.clear()
    assert CliRunner().invoke(cli.main, ["serve", "--list-devices"]).exit_code == 1


@pytest.mark.parametrize("flag", ["-cl", "--cache-list"])
def test_the_models_at_hand_are_listed(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    fill(tmp_path, "u/m", "m-Q8_0.gguf")
    assert printed("serve", flag) == "number of models in cache: 1\n   1. u/m:Q8_0\n"


def test_a_shell_completes_our_options() -> None:
    assert "complete -o nosort -F _llamapool_completion llamapool" in printed(
        "serve", "--completion-bash"
    )


@pytest.mark.model
def test_the_library_that_is_here_is_asked() -> None:
    assert "llama.cpp b" in printed("serve", "--version")
    assert printed("serve", "--list-devices").startswith("Available devices:\n")
