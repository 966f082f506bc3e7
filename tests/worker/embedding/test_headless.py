"""Embeddings without the output head: where graphs end, and what is pooled here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.bert import write_bert
from tests.models.llama import write_llama
from tests.models.shallow import shallow_path
from tests.worker.embedders import loaded
from worker.embedding.inputs import InputReader
from worker.engine.backend import EmbeddingPiece
from worker.llama.embedding import context as embedding
from worker.llama.embedding.headless import POOLS, GraphWatch
from worker.llama.hardware import devices

pytestmark = pytest.mark.model

TEXTS = ["Hello world", "The cat sat on the mat, and the mat lay there.", "x"]


def vectors(model: str | Path, **config: Any) -> list[bytes]:
    with loaded(model, **config) as (backend, embedder):
        reader = InputReader(backend, embedder)
        pieces = [EmbeddingPiece(i, 0, reader.text(text), True, -1) for i, text in enumerate(TEXTS)]
        return embedder.embed(pieces)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
@pytest.mark.parametrize("is_real", [True, False])
def test_vectors_without_the_head_are_those_with_it(
    pooling: str, is_real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shallow_path() if is_real else str(write_llama(tmp_path / "m.gguf"))
    without = vectors(model, pooling=pooling)
    monkeypatch.setattr(embedding, "watch_for", lambda *_: None)
    with_head = vectors(model, pooling=pooling)
    for one, other in zip(without, with_head, strict=True):
        ours, theirs = np.frombuffer(one, np.float32), np.frombuffer(other, np.float32)
        assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-6 * float(np.abs(theirs).max()))


def test_the_model_s_own_pooling_is_kept(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", pooling="last")
    with loaded(path) as (_, embedder):
        assert (embedder.pooling, embedder.can_split) == ("last", True)
        assert embedder._watch is not None


def test_an_encoder_has_no_head_and_is_pooled_by_llama_cpp(tmp_path: Path) -> None:
    with loaded(write_bert(tmp_path / "bert.gguf", pooling="mean")) as (_, embedder):
        assert (embedder.pooling, embedder._watch) == ("mean", None)


def test_no_node_behind_the_states_is_computed_in_any_batch() -> None:
    with loaded(shallow_path(), pooling="mean") as (backend, embedder):
        watch, asked = embedder._watch, list[bytes]()
        assert watch is not None
        name_of = watch._name

        def noted(node: int) -> bytes:
            asked.append(name_of(node))
            return asked[-1]

        watch._name = noted  # type: ignore[assignment]
        reader = InputReader(backend, embedder)
        for _ in range(2):
            embedder.embed([EmbeddingPiece(0, 0, reader.text(TEXTS[0]), True, -1)])
            assert asked[-1] == b"result_embd_pooled"
            assert b"result_output" not in asked
            asked.clear()


def test_a_library_without_names_of_nodes_leaves_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_llama(tmp_path / "m.gguf", pooling="mean")
    _ = devices.registry(), devices.base()  # loading needs them; a process opens them once
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    with loaded(path) as (_, embedder):
        assert (embedder.pooling, embedder._watch) == ("mean", None)


def computed(watch: GraphWatch, splits: list[list[bytes]]) -> list[bytes]:
    """Compute the named nodes as ggml_backend_sched_compute_splits does."""
    names = {id(name): name for split in splits for name in split}
    watch._name = names.__getitem__  # type: ignore[assignment]
    ask, done = watch._callback, []
    for split in splits:
        at = 0
        while at < len(split):
            last = at
            is_wanted = ask(id(split[last]), True, None)
            while not is_wanted and last < len(split) - 1:
                last += 1
                is_wanted = ask(id(split[last]), True, None)
            done += split[at : last + 1]
            if is_wanted and not ask(id(split[last]), False, None):
                break
            at = last + 1
    return done


def test_a_graph_over_several_devices_ends_on_all_of_them() -> None:
    watch = GraphWatch()
    on_gpu = [b"embd", b"l_out-0", b"result_embd_pooled", b"cast"]
    on_cpu = [b"result_output", b"more"]
    assert computed(watch, [on_gpu, on_cpu]) == on_gpu + on_cpu
    assert watch.has_head
    watch.is_cutting = True
    for _ in range(2):
        watch.begin()
        assert computed(watch, [on_gpu, on_cpu]) == [*on_gpu[:3], b"result_output"]


def test_layers_behind_the_pooling_are_seen() -> None:
    watch = GraphWatch()
    twice = [b"embd", b"result_embd_pooled", b"dense", b"result_embd_pooled"]
    computed(watch, [[*twice, b"result_output"]])
    assert (watch.has_head, watch.n_states) == (True, 2)


def test_a_graph_whose_states_have_another_name_is_computed_whole() -> None:
    watch = GraphWatch()
    watch.is_cutting = True
    nodes = [b"embd", b"states", b"result_output"]
    assert computed(watch, [nodes]) == nodes


def test_rows_become_a_vector() -> None:
    rows = np.array([[1, 2], [3, 4], [5, 9]], np.float32)
    found = {name: pool(rows).tolist() for name, pool in POOLS.items()}
    assert found == {"mean": [3, 5], "cls": [1, 2], "last": [5, 9]}
    assert POOLS["mean"](rows).dtype == np.float32
