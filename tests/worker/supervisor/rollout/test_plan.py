"""What must change so that the workers are those of a configuration."""

from dataclasses import replace
from pathlib import Path

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from worker.supervisor.rollout.change import Change
from worker.supervisor.rollout.plan import (
    PlannedWorker,
    base_name,
    changes,
    find_process,
    other_name,
    planned,
)
from worker.supervisor.rollout.reader import typed


def table(name: str, path: Path) -> WorkerConfig:
    return WorkerConfig(name=name, alias="m", model=str(path), n_slots=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + b"a" * 1000)
    return path


def running(*tables: WorkerConfig) -> dict[str, PlannedWorker]:
    return {worker.name: planned(worker, worker) for worker in tables}


def test_names_alternate() -> None:
    assert other_name("h/w-1") == "h/w-1~2"
    assert other_name(other_name("h/w-1")) == base_name("h/w-1~2") == "h/w-1"


def test_a_process_is_found_by_name_without_host_or_generation() -> None:
    processes = ["a/w-1~2", "a/w-2", "b/w-2", "b/x"]
    for name in ("a/w-1~2", "a/w-1", "w-1", "w-1~2"):
        assert find_process(processes, name) == "a/w-1~2"
    assert find_process(processes, "a/w-2") == "a/w-2"
    assert find_process(processes, "w-2") == find_process(processes, "y") == ""
    assert find_process(["w", "w~2"], "w") == "w"


def test_a_name_with_a_host_means_no_worker_of_another_host() -> None:
    assert find_process(["a/w-1", "a/w-2"], "b/w-1") == ""
    assert find_process(["a/w-1~2"], "b/w-1~2") == ""


def test_all_are_replaced_unless_only_what_changed_is_asked_for(model: Path) -> None:
    worker = table("w", model)
    found, coming = changes(running(worker), [(worker, worker)], only_changed=False)
    assert found == [Change(model="m", old="w", new="w~2", is_comparable=True)]
    assert coming["w~2"].config.name == "w~2"
    assert coming["w~2"].name == "w"
    assert changes(running(worker), [(worker, worker)], only_changed=True) == ([], {})


def test_a_changed_table_is_a_change_and_a_changed_place_is_none(model: Path) -> None:
    worker = table("w", model)
    elsewhere = replace(worker, n_threads=7)
    assert changes(running(worker), [(worker, elsewhere)], only_changed=True)[0] == []
    wider = replace(worker, n_slots=3)
    (change,), _ = changes(running(worker), [(wider, wider)], only_changed=True)
    assert not change.is_comparable  # other sums are rounded together


def test_a_file_that_was_replaced_is_a_change_of_which_nobody_compares(model: Path) -> None:
    worker = table("w", model)
    before = running(worker)
    model.write_bytes(b"GGUF" + b"b" * 1000)
    (change,), _ = changes(before, [(worker, worker)], only_changed=True)
    assert not change.is_comparable
    assert not before["w"].is_restorable


def test_workers_are_added_before_others_are_replaced_and_removed_last(model: Path) -> None:
    first, other, third = (table(name, model) for name in ("a", "b", "c"))
    wider = replace(other, n_slots=9)
    found, _ = changes(running(first, other), [(third, third), (wider, wider)], only_changed=True)
    assert [(change.old, change.new) for change in found] == [("", "c"), ("b", "b~2"), ("a", "")]


def test_options_of_a_change_are_checked_by_their_types() -> None:
    found = typed({"worker.n_ctx": 512, "worker.lora": ["a", "b"], "sampling.top_k": 3})
    assert found == {"worker.n_ctx": 512, "worker.lora": ("a", "b"), "sampling.top_k": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker.n_ctx": "many"}, "n_ctx"),
        ({"worker.n_ctx": -5}, "n_ctx"),
        ({"worker.nctx": 5}, "did you mean 'n_ctx'"),
        ({"gateway.port": 1}, "gateway.port"),
        ({"worker.name": "x"}, "worker.name"),
        ({"runtime_dir": "/x"}, "runtime_dir"),
    ],
)
def test_other_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        typed(options)
