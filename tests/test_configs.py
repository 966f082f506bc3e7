"""The example configurations load, resolve, and stay short."""

from pathlib import Path

import pytest

from gateway.keys.parse import parse_keys
from protocol.config.config import load
from tests.worker.hosts import flat
from worker.settings.resolve import resolve

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_example_loads_and_resolves(path: Path) -> None:
    config = resolve(load(path), runtime_dir="/run/x", host=flat(4))
    assert all(worker.name and worker.alias and worker.model for worker in config.worker)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_example_is_short_and_explained(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith("# ")
    assert any(f"--config configs/{path.name}" in line for line in lines)


def test_the_example_of_a_key_file_is_one() -> None:
    path = Path(__file__).parent.parent / "configs" / "keys" / "team.toml"
    assert [one.name for one in parse_keys(path.read_text())][:2] == ["ops", "prometheus"]


def test_all_examples_are_here() -> None:
    names = {path.stem for path in CONFIGS}
    assert {"cpu-tiny", "one-gpu", "two-gpu-split", "two-models"} <= names


def test_examples_say_what_they_promise() -> None:
    by_name = {
        path.stem: resolve(load(path), runtime_dir="/run/x", host=flat(4)).worker
        for path in CONFIGS
    }
    assert len(by_name["cpu-tiny"]) == 2
    assert by_name["two-gpu-split"][0].tensor_split == (3.0, 1.0)
    assert by_name["one-gpu"][0].devices == "0"
    assert [worker.alias for worker in by_name["two-models"]] == ["small", "precise"]
