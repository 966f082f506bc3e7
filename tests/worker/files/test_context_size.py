"""How long the contexts of a worker and of its slots are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from tests.models.llama import write_llama
from tests.worker.conftest import model_path
from worker.files import context_size
from worker.files.context_size import contexts, planned_cache, reachable_context, slot_context
from worker.files.gguf_header import Header, cache_bytes, read_header

A_TOKEN = 30 * 3 * 64 * 4
"""Bytes of a token of the default model in the KV cache."""


def tried(worker: WorkerConfig, n_ctx_train: int, most: int = 1 << 60) -> list[int]:
    """Return the contexts that are tried, where one may have at most so many tokens."""
    return [one.n_ctx for one in contexts(worker, n_ctx_train, lambda one: one.n_ctx <= most)]


def test_each_slot_has_the_trained_context_as_far_as_memory_reaches() -> None:
    worker = WorkerConfig(n_slots=3, fit_ctx=3000)
    assert tried(worker, 8192) == [24576, 12288, 8192, 4096, 3000]
    assert tried(worker, 8192, most=20_000) == [12288, 8192, 4096, 3000]
    assert tried(worker, 8192, most=0) == [8192, 4096, 3000]


def test_slots_that_share_a_cache_have_one_trained_context_in_all() -> None:
    assert tried(WorkerConfig(n_slots=4, kv_unified=True, fit_ctx=8192), 8192) == [8192]


@pytest.mark.parametrize("fixed", [{"n_ctx": 16384}, {"fit": False}], ids=str)
def test_a_context_that_was_set_is_tried_alone(fixed: Mapping[str, Any]) -> None:
    worker = replace(WorkerConfig(n_slots=4), **fixed)
    assert list(contexts(worker, 8192, lambda _: True)) == [worker]


def test_a_file_that_names_no_trained_context_leaves_it_open() -> None:
    assert tried(WorkerConfig(n_slots=4), 0) == [0]


SLOTS = [
    ((4096, 4, False), {}, 1024),
    ((4096, 4, True), {}, 4096),
    ((0, 4, False), {}, 2048),
    ((32768, 1, False), {}, 8192),
    ((65536, 4, False), {}, 8192),
    ((32768, 4, True), {}, 8192),
    ((32768, 1, False), {"rope_scaling": "yarn"}, 32768),
    ((32768, 1, False), {"grp_attn_n": 4}, 32768),
    ((32768, 4, True), {"n_ctx_per_slot": 1000}, 1000),
    ((1000, 3, False), {}, 512),
]


@pytest.mark.parametrize(("sizes", "more", "expected"), SLOTS, ids=str)
def test_a_slot_has_its_part_and_at_most_the_trained_context(
    sizes: tuple[int, int, bool], more: Mapping[str, Any], expected: int
) -> None:
    n_ctx, n_slots, kv_unified = sizes
    worker = WorkerConfig(n_ctx=n_ctx, n_slots=n_slots, kv_unified=kv_unified)
    assert slot_context(replace(worker, **more), 8192) == expected


@pytest.mark.parametrize(
    ("options", "original", "reachable"),
    [
        ({"rope_scaling": "yarn", "rope_freq_scale": 0.25}, 0, 32768),
        ({"rope_scaling": "yarn", "rope_freq_scale": 0.25}, 2048, 8192),
        ({"rope_scaling": "yarn", "rope_freq_scale": 0.5, "yarn_orig_ctx": 1000}, 2048, 2000),
        ({"rope_scaling": "yarn"}, 2048, 8192),
        ({"rope_scaling": "yarn", "rope_freq_scale": 1e-320}, 0, 1 << 24),
        ({"rope_scaling": "linear", "rope_freq_scale": 0.25}, 0, 8192),
    ],
    ids=str,
)
def test_yarn_reaches_further_than_the_trained_context(
    options: Mapping[str, Any], original: int, reachable: int
) -> None:
    assert reachable_context(replace(WorkerConfig(), **options), 8192, original) == reachable


@pytest.mark.parametrize(
    ("quarter", "is_on_gpu", "n_ctx"),
    [(1 << 60, False, 32768), (A_TOKEN * 20_000, False, 16384), (0, False, 8192), (0, True, 32768)],
)
def test_the_cache_that_is_planned_is_the_one_that_is_tried_first(
    monkeypatch: pytest.MonkeyPatch, quarter: int, is_on_gpu: bool, n_ctx: int
) -> None:
    monkeypatch.setattr(context_size, "quarter_of_memory", lambda: quarter)
    header, worker = read_header(Path(model_path())), WorkerConfig(n_slots=4)
    assert planned_cache(header, worker, is_on_gpu=is_on_gpu) == n_ctx * A_TOKEN
    small = replace(worker, n_ctx=100)
    assert planned_cache(header, small, is_on_gpu=is_on_gpu) == cache_bytes(header, small)


@pytest.mark.parametrize("values", [{}, {"llama.context_length": "long"}], ids=str)
def test_nothing_is_planned_for_a_file_without_a_length(values: Mapping[str, Any]) -> None:
    header = Header(fault="", values={"general.architecture": "llama", **values})
    assert planned_cache(header, WorkerConfig(n_slots=4), is_on_gpu=False) == 0


def test_a_context_that_was_set_is_planned_for_a_file_without_a_length() -> None:
    found = read_header(Path(model_path()))
    values = {key: value for key, value in found.values.items() if "context_length" not in key}
    worker = WorkerConfig(n_slots=4, n_ctx=100)
    planned = planned_cache(replace(found, values=values), worker, is_on_gpu=False)
    assert planned == 100 * A_TOKEN


@pytest.mark.model
@pytest.mark.parametrize(
    ("options", "n_ctx_slot", "said"),
    [
        ({"n_slots": 3}, 2048, ()),
        ({"n_slots": 3, "fit": False}, 768, ()),
        (
            {"n_slots": 2, "n_ctx": 8192},
            2048,
            ("n_ctx=4096", "each slot has 2048 tokens", "yarn reaches"),
        ),
        ({"n_slots": 2, "n_ctx": 1024}, 512, ()),
        ({"n_slots": 2, "rope_scaling": "yarn", "rope_freq_scale": 0.5}, 4096, ()),
    ],
    ids=str,
)
def test_slots_have_what_llama_server_gives_them(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    options: Mapping[str, Any],
    n_ctx_slot: int,
    said: Sequence[str],
) -> None:
    from worker.llama.model import load

    path = str(write_llama(tmp_path / "m.gguf"))
    loaded = load(replace(WorkerConfig(model=path, n_threads=1), **options), lambda _: None)
    loaded.close()
    assert loaded.n_ctx_slot == n_ctx_slot
    lines = [line for line in caplog.text.splitlines() if "longer than the model" in line]
    assert len(lines) == bool(said) and all(part in lines[0] for part in said)
