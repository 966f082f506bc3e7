"""Weights that are read and weights that are mapped."""

from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import PoolConfig, WorkerConfig, dump, load
from tests.worker.hosts import flat, nodes
from worker.files.model_file import weigh
from worker.host.placement import Host, Placement, place
from worker.host.weights import maps
from worker.settings.resolve import resolve, settle

GIB = 2**30
SIZES = {"a": GIB, "b": 2 * GIB, "big": 9 * GIB}
HOST = flat(4, free_memory=16 * GIB)
"""Half of it takes a and b, and not big."""


def worker(model: str = "a", **fields: Any) -> WorkerConfig:
    return WorkerConfig(model=model, **fields)


def placed(*workers: WorkerConfig, host: Host = HOST) -> list[Placement]:
    return list(place(host, workers, SIZES))


@pytest.mark.parametrize(
    ("workers", "reads"),
    [
        ([worker()], [True]),
        ([worker("a"), worker("b")], [True, True]),
        ([worker("a"), worker("a"), worker("b")], [False, False, True]),
        ([worker("a"), worker("b", model_draft="a")], [False, False]),
        ([worker("b", model_draft="a")], [True]),
        ([worker("big")], [False]),
        ([worker("big", n_gpu_layers=0), worker("a")], [False, False]),
        ([worker("big", use_mmap=True), worker("a")], [False, True]),
        ([worker("unknown")], [False]),
        ([worker("a", model_draft="unknown")], [False]),
        ([worker("")], [False]),
        ([worker(backend="fake")], [False]),
        ([worker(devices="0")], [False]),
        ([worker(devices="0", n_gpu_layers=0)], [True]),
        ([worker(rpc=("h:1",))], [False]),
    ],
)
def test_only_who_is_alone_with_weights_that_fit_reads_them(
    workers: list[WorkerConfig], reads: list[bool]
) -> None:
    assert [one.reads for one in placed(*workers)] == reads


@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ({"use_mmap": True}, False),
        ({"use_mmap": False}, True),
        ({"use_mlock": True}, False),
        ({"use_mlock": True, "use_mmap": False}, True),
        ({"load_mode": "mmap"}, False),
        ({"load_mode": "auto"}, False),
        ({"load_mode": "dio"}, True),
        ({"load_mode": "mmap+mlock", "use_mmap": False}, False),
    ],
)
def test_what_a_person_says_of_the_weights_stands(fields: dict[str, Any], reads: bool) -> None:
    (one,) = placed(worker(**fields))
    assert (one.reads, "weights: as given" in one.why) == (reads, True)
    assert maps(worker(**fields)) is not reads


@pytest.mark.parametrize(
    ("workers", "host", "why"),
    [
        ([worker()], HOST, "read, because no other worker shares them"),
        ([worker(), worker()], HOST, "mapped, because several workers share them"),
        ([worker("big")], HOST, "mapped, because they are more than half of the free memory"),
        ([worker()], flat(4), "the free memory is unknown"),
        ([worker("unknown")], HOST, "their size is not known yet"),
        ([worker()], flat(4, has_gpu=True, free_memory=GIB), "the CPU does not do the work"),
    ],
)
def test_the_reason_is_said(workers: list[WorkerConfig], host: Host, why: str) -> None:
    assert why in placed(*workers, host=host)[0].why


def test_on_several_nodes_only_who_is_kept_on_one_reads() -> None:
    host = nodes(2, 8, free_memory=16 * GIB)
    assert [one.reads for one in placed(worker("a"), worker("b"), host=host)] == [True, True]
    assert [one.reads for one in placed(worker(n_threads=4), host=host)] == [True]
    assert [one.reads for one in placed(worker(cpus="8-11"), host=host)] == [True]
    for one in (worker(), worker(cpus="6-9"), worker(numa="none")):
        (found,) = placed(one, host=host)
        assert not found.reads
        assert "mapped, because its threads are on several NUMA nodes" in found.why


def test_the_parts_of_a_split_file_are_weighed_together(tmp_path: Path) -> None:
    names = [f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    for size, name in enumerate(names, 1):
        (tmp_path / name).write_bytes(b"x" * size)
    assert weigh(str(tmp_path / names[0])) == 6
    (tmp_path / names[1]).unlink()
    assert weigh(str(tmp_path / names[0])) == 0
    (tmp_path / "whole.gguf").write_bytes(b"four")
    assert weigh(str(tmp_path / "whole.gguf")) == 4
    assert weigh(str(tmp_path / "none.gguf")) == 0


def model(folder: Path, name: str = "m.gguf") -> str:
    path = folder / name
    path.write_bytes(b"GGUF" + bytes(96))
    return str(path)


@pytest.mark.parametrize(("free", "maps_it"), [(200, False), (199, True), (0, True)])
def test_a_resolved_worker_has_it_settled_and_resolving_again_changes_nothing(
    tmp_path: Path, free: int, maps_it: bool
) -> None:
    pool = PoolConfig(worker=(worker(model(tmp_path)),))
    once = resolve(pool, runtime_dir="/run/x", host=flat(4, free_memory=free))
    assert once.worker[0].use_mmap is maps_it
    (tmp_path / "pool.json").write_text(dump(once))
    for host in (flat(4), HOST):
        again = resolve(load(tmp_path / "pool.json"), runtime_dir="/run/x", host=host)
        assert again == once


def test_two_workers_of_one_file_share_it(tmp_path: Path) -> None:
    pool = PoolConfig(worker=(worker(model(tmp_path), count=2),))
    resolved, placements = settle(pool, runtime_dir="/run/x", host=HOST)
    assert [one.use_mmap for one in resolved.worker] == [True, True]
    assert [one.reads for one in placements] == [False, False]


def test_unset_stays_unset_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "pool.json").write_text(dump(PoolConfig(worker=(WorkerConfig(),))))
    assert load(tmp_path / "pool.json").worker[0].use_mmap is None
    (tmp_path / "pool.toml").write_text("[[worker]]\nuse_mmap = false\n")
    assert load(tmp_path / "pool.toml").worker[0].use_mmap is False
