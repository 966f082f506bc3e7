"""Slots with caches of their own: the real llama.cpp without `--kv-unified`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import pytest

from protocol.config.config import WorkerConfig
from protocol.wire.side_tasks import SlotAction
from tests.cores import threads
from tests.models.shallow import shallow_path
from tests.worker.conftest import serving
from tests.worker.served import Served, is_plausible
from worker.engine.backend import BatchRow, CacheFull
from worker.llama.backend import LlamaBackend

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

N_SLOTS, N_CTX = 4, 256
STORY = "Once upon a time there was a very old house at the end of the street, and in it lived"
TOKENS = [100 + i % 50 for i in range(60)]


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    config = WorkerConfig(
        model=shallow_path(), n_slots=N_SLOTS, n_ctx=N_SLOTS * N_CTX, n_threads=threads(),
        flash_attn="off",
    )  # fmt: skip
    backend = LlamaBackend(config, lambda _fraction: None)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def four(folder: Path) -> Iterator[Served]:
    with serving(N_SLOTS, n_ctx=N_SLOTS * N_CTX, slot_save_path=str(folder)) as served:
        served.engine.cache._host._n_bytes_max = -1
        yield served


@pytest.fixture(autouse=True)
def empty(backend: LlamaBackend) -> None:
    backend.clear()


def read(backend: LlamaBackend, seq: int, tokens: list[int]) -> None:
    backend.decode([BatchRow(seq, 0, tokens, False)])


def logits(backend: LlamaBackend, *places: tuple[int, int]) -> list[Any]:
    """Decode a token at each position of a sequence."""
    backend.decode([BatchRow(seq, pos, [5], True) for seq, pos in places])
    return [backend._logits(last)[:200].copy() for last in backend._batch.last]


def n_cells(backend: LlamaBackend, seq: int) -> int:
    return int(lib.llama_memory_seq_pos_max(backend._memory, seq)) + 1


def test_each_slot_has_its_own_cells(backend: LlamaBackend) -> None:
    assert not backend.is_unified
    assert (backend.n_seq, backend.states.can_cut) == (N_SLOTS, False)
    for seq in range(N_SLOTS):
        read(backend, seq, [7] * N_CTX)
    with pytest.raises(CacheFull):
        backend.decode([BatchRow(0, N_CTX, [7], True)])


def test_a_copy_goes_on_as_its_source_would(backend: LlamaBackend) -> None:
    read(backend, 0, TOKENS)
    read(backend, 2, TOKENS[:20])
    backend.copy(0, 2, 20, 40)
    expected, found = logits(backend, (0, 60), (2, 40))
    assert n_cells(backend, 2) == 41
    backend.clear()
    read(backend, 1, TOKENS[:40])
    assert found == pytest.approx(logits(backend, (1, 40))[0], abs=0.5), "but for rounding"
    backend.clear()
    read(backend, 1, TOKENS)
    assert expected == pytest.approx(logits(backend, (1, 60))[0], abs=0.5)


@pytest.mark.parametrize("overwritten", [0, 2])
def test_a_copy_is_made_before_one_of_both_is_overwritten(
    backend: LlamaBackend, overwritten: int
) -> None:
    """llama.cpp makes it with the next batch, and by then another state may be there."""
    read(backend, 0, TOKENS)
    read(backend, 1, [9] * 30)
    (first,) = logits(backend, (0, 60))
    (other,) = logits(backend, (1, 30))
    backend.remove(0, 60)
    backend.remove(1, 30)
    state = backend.states.copy(1)
    backend.copy(0, 2, 0, 60)
    assert backend.states.put(overwritten, state, 30)
    assert logits(backend, (overwritten, 30))[0] == pytest.approx(other, abs=1e-3)
    if overwritten == 0:
        assert logits(backend, (2, 60))[0] == pytest.approx(first, abs=1e-3)


@pytest.mark.parametrize("n_tokens", [60, N_CTX])
def test_a_copy_is_made_before_it_is_saved(backend: LlamaBackend, n_tokens: int) -> None:
    tokens = (TOKENS * 9)[:n_tokens]
    read(backend, 0, tokens)
    backend.copy(0, 2, 0, n_tokens)
    state = backend.states.copy(2)
    assert n_cells(backend, 2) == n_tokens
    assert backend.states.put(3, state, n_tokens)
    for seq in (0, 3):
        backend.remove(seq, n_tokens - 1)
    expected, found = logits(backend, (0, n_tokens - 1), (3, n_tokens - 1))
    assert found == pytest.approx(expected, abs=1e-3)


def test_sequences_between_those_of_a_batch_stay_as_they_are(backend: LlamaBackend) -> None:
    for seq in range(N_SLOTS):
        read(backend, seq, TOKENS[: 10 * (seq + 1)])
    alone = [logits(backend, (seq, 10 * (seq + 1)))[0] for seq in range(N_SLOTS)]
    for seq in range(N_SLOTS):
        backend.remove(seq, 10 * (seq + 1))
    # In another order than their numbers have.
    last, first = logits(backend, (3, 40), (0, 10))
    assert first == pytest.approx(alone[0], abs=0.5)
    assert last == pytest.approx(alone[3], abs=0.5)
    assert [n_cells(backend, seq) for seq in range(N_SLOTS)] == [11, 20, 30, 41]
    assert logits(backend, (1, 20))[0] == pytest.approx(alone[1], abs=1e-3)


def test_a_full_sequence_between_those_of_a_batch_is_passed_over(backend: LlamaBackend) -> None:
    read(backend, 1, [7] * N_CTX)
    read(backend, 0, TOKENS)
    read(backend, 2, TOKENS)
    assert len(logits(backend, (0, 60), (2, 60))) == 2
    backend.remove(1, N_CTX - 1)
    assert len(logits(backend, (0, 61), (2, 61))) == 2
    assert n_cells(backend, 1) == N_CTX - 1


@pytest.mark.parametrize(("n_tokens", "n_computed"), [(1, 3), (6, 12)])
def test_a_gap_between_two_drafts_or_prompts_stays(
    backend: LlamaBackend, n_tokens: int, n_computed: int
) -> None:
    backend.decode([BatchRow(seq, 0, TOKENS[:n_tokens], True) for seq in (0, 2)])
    assert backend._batch.raw.n_tokens == n_computed


def test_a_state_goes_into_any_slot_and_back(backend: LlamaBackend) -> None:
    read(backend, 1, TOKENS)
    state = backend.states.copy(1)
    (expected,) = logits(backend, (1, 60))
    for seq in (0, 3, 1):
        assert backend.states.put(seq, state, 60)
        assert len(backend.states.copy(seq)) == len(state)
        assert logits(backend, (seq, 60))[0] == pytest.approx(expected, abs=1e-3)


def test_a_prompt_takes_what_another_slot_has_read(single: Served, four: Served) -> None:
    four.ask(STORY, id_slot=0, n_predict=4)
    answer = four.ask(STORY + " a witch who", id_slot=2)
    assert answer.done.n_cached == len(four.tokenize(STORY))
    is_plausible(single, STORY + " a witch who", answer)


def test_choices_of_one_prompt_read_it_once(single: Served, four: Served) -> None:
    prompt = "Three brothers went into the wood, and the eldest of them said that he" * 2
    answers = four.ask_all([prompt] * 3)
    n_prompt = answers[0].done.n_prompt
    assert sum(n_prompt - answer.done.n_cached for answer in answers) == n_prompt
    assert len({answer.text for answer in answers}) == 1
    is_plausible(single, prompt, answers[0])


def test_a_choice_that_ends_at_once_is_saved_whole(
    single: Served, four: Served, folder: Path
) -> None:
    """Its slot has taken the prompt of another one, and nothing was computed since."""
    prompt = "The largest cities of Europe are listed here, each with its river: London" * 2
    four.ask_all([prompt] * N_SLOTS, n_predict=1)
    names = [f"choice {slot}" for slot in range(N_SLOTS)]
    for slot, name in enumerate(names):
        four.do(SlotAction(action="save", filename=name), folder, slot)
    for name in names:
        four.do(SlotAction(action="restore", filename=name), folder, 0)
        answer = four.ask(prompt + " and", id_slot=0)
        assert answer.done.n_cached == len(four.tokenize(prompt))
        is_plausible(single, prompt + " and", answer)


def test_a_prompt_comes_back_from_ram_in_part(single: Served, four: Served) -> None:
    cache = four.engine.cache
    four.ask(STORY * 5, id_slot=1, n_predict=8)
    while cache.evict():
        pass
    answer = four.ask(STORY * 4 + " nobody.", id_slot=3)
    assert answer.done.n_cached >= len(four.tokenize(STORY * 4)) - 1
    is_plausible(single, STORY * 4 + " nobody.", answer)


def test_a_saved_slot_is_that_of_a_unified_cache(
    single: Served, four: Served, folder: Path
) -> None:
    n_tokens = four.ask(STORY, n_predict=0, id_slot=2).done.n_prompt
    four.do(SlotAction(action="save", filename="story"), folder, 2)
    with serving(2, n_ctx=N_CTX, slot_save_path=str(folder), kv_unified=True) as two:
        two.do(SlotAction(action="restore", filename="story"), folder, 1)
        answer = two.ask(STORY + " a witch who", id_slot=1)
    assert answer.done.n_cached == n_tokens
    is_plausible(single, STORY + " a witch who", answer)
