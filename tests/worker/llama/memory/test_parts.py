"""Parts of a sequence of the real llama.cpp, copied and put piece by piece."""

import itertools
from collections.abc import Iterator

import pytest

from protocol.config.config import WorkerConfig
from tests.cores import threads
from tests.models.shallow import shallow_path
from tests.worker.conftest import serving
from tests.worker.served import Served, is_plausible
from worker.engine.backend import BatchRow
from worker.llama.backend import LlamaBackend

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["off", "on"])
def backend(request: pytest.FixtureRequest) -> Iterator[LlamaBackend]:
    """With flash attention and without: values lie in other places."""
    config = WorkerConfig(
        model=shallow_path(), n_slots=2, n_ctx=256, n_threads=threads(), cache_branches=0,
        kv_unified=True, flash_attn=request.param,
    )  # fmt: skip
    backend = LlamaBackend(config, lambda _fraction: None)
    yield backend
    backend.close()


def logits(backend: LlamaBackend, seq: int, pos: int) -> list[float]:
    backend.decode([BatchRow(seq, pos, [5], True)])
    row = backend._logits(backend._batch.last[0])
    return [float(value) for value in row[:200]]


def test_a_sequence_put_together_from_parts_is_the_one_that_was_copied(
    backend: LlamaBackend,
) -> None:
    tokens = [100 + i % 50 for i in range(100)]
    backend.clear()
    backend.decode([BatchRow(0, 0, tokens, False)])
    states = backend.states
    assert states.can_cut and backend.n_seq == 2
    parts = [states.copy_part(0, start, start + 25) for start in range(0, 100, 25)]
    expected = logits(backend, 0, 100)
    backend.remove(0, 0)
    ends = [25, 50, 75, 100]
    assert all(
        states.put_part(1, part, end - 25, end) for part, end in zip(parts, ends, strict=True)
    )
    assert logits(backend, 1, 100) == pytest.approx(expected, abs=1e-4)
    # A shorter beginning, the last part of which is used in part.
    backend.remove(1, 0)
    assert states.put_part(1, parts[0], 0, 25)
    assert states.put_part(1, parts[1], 25, 40)
    backend.decode([BatchRow(1, 40, tokens[40:], False)])
    assert logits(backend, 1, 100) == pytest.approx(expected, abs=0.5), "but for rounding"
    assert states.copy_part(1, 0, 25)[8:24] == parts[0][8:24]


def test_as_many_slots_as_llama_cpp_has_sequences_copy_them_whole() -> None:
    """No sequence is left over through which parts could be copied."""
    config = WorkerConfig(
        model=shallow_path(), n_slots=256, n_ctx=512, n_threads=threads(), kv_unified=True,
        warmup=False,
    )  # fmt: skip
    backend = LlamaBackend(config, lambda _fraction: None)
    assert backend.n_seq == 256 and not backend.states.can_cut
    backend.decode([BatchRow(0, 0, [7] * 100, False)])
    state, expected = backend.states.copy(0), logits(backend, 0, 100)
    backend.remove(0, 0)
    assert backend.states.put(255, state, 100)
    assert logits(backend, 255, 100) == pytest.approx(expected, abs=1e-4)
    backend.close()


def test_a_part_that_finds_no_cells_changes_nothing(backend: LlamaBackend) -> None:
    backend.clear()
    backend.decode([BatchRow(0, 0, [7] * 150, False)])
    part = backend.states.copy_part(0, 0, 150)
    assert not backend.states.put_part(1, part, 0, 150)
    backend.decode([BatchRow(1, 0, [9] * 100, False)])
    backend.clear()


def test_a_prompt_that_comes_back_piece_by_piece_goes_on_as_if_it_was_read(
    single: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.engine.cache.cache.MOST_CELLS", 0.0)  # as on a CPU
    monkeypatch.setattr("worker.engine.cache.host_transfer.PAUSE_S", 0.0)
    story = "Once upon a time there was a very old house at the end of the street, " * 6
    with serving(2, kv_unified=True) as two:
        cache, ticks = two.engine.cache, itertools.count()
        cache._host._n_bytes_max, cache._host.n_piece = -1, 32
        cache.copies.clock = lambda: next(ticks)  # one piece a step
        two.ask(story, id_slot=0, n_predict=4)
        two.ask("Another story begins", id_slot=1, n_predict=12, ignore_eos=True)
        assert cache.n_host_bytes and cache.n_cells < 50
        answer = two.ask(story + "and in it lived")
    assert two.engine.counters.n_restored > 90
    assert answer.done.n_cached >= len(single.tokenize(story)) - 1
    is_plausible(single, story + "and in it lived", answer)
