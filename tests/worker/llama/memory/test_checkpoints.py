"""Prompts that begin alike, with models whose memory cannot be cut anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest

from tests.models.memories import WINDOW, WRITERS, write_lfm2
from tests.worker.conftest import serving
from tests.worker.served import Served
from worker.engine.backend import BatchRow
from worker.engine.cache.checkpoints import BEFORE_END, EARLIER
from worker.engine.cache.sequences import CacheLimits
from worker.engine.sequence_state import Checkpoint
from worker.llama.backend import LlamaBackend
from worker.llama.model import architecture

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

RULES = "You are a machine that knows all about trains and their stations. " * 12
SAMPLED = {"temperature": 1.0, "seed": 7, "n_predict": 24}
"""The likeliest token of random weights is the last one again: such texts tell nothing apart."""
WINDOWED = ("gemma3", "gemma4")
ASKED = ["Where is A?", "Does B lie by the sea?", "How long is it?", "Any trains?"]


@pytest.fixture(
    scope="module",
    params=[*((name, True) for name in WRITERS), *((name, False) for name in WINDOWED)],
)
def kind(request: pytest.FixtureRequest) -> tuple[str, bool]:
    """Each kind of memory, and whether the slots share one cache."""
    name, is_unified = request.param
    return name, is_unified


@pytest.fixture(scope="module")
def model(kind: tuple[str, bool], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / f"{kind[0]}.gguf"
    return str(WRITERS[kind[0]](path))


@contextmanager
def running(
    model: str, n_slots: int, *, is_unified: bool = True, swa_full: bool = False
) -> Iterator[Served]:
    n_ctx = 4096 if is_unified else 4096 * n_slots
    with serving(
        n_slots, model=model, n_ctx=n_ctx, kv_unified=is_unified, n_ubatch=WINDOW, swa_full=swa_full
    ) as served:
        served.engine.cache._host._n_bytes_max = -1
        assert served.backend.is_unified == is_unified
        yield served


@pytest.fixture(scope="module")
def one(model: str, kind: tuple[str, bool]) -> Iterator[Served]:
    with running(model, 1, is_unified=kind[1]) as served:
        yield served


@pytest.fixture(scope="module")
def fresh(one: Served) -> dict[str, str]:
    """The text of each question that nothing was known of."""
    return {end: one.ask(RULES + end, cache_prompt=False, **SAMPLED).text for end in ASKED}


@pytest.fixture
def two(model: str, kind: tuple[str, bool]) -> Iterator[Served]:
    with running(model, 2, is_unified=kind[1]) as served:
        yield served


def n_rules(served: Served) -> int:
    return len(served.tokenize(RULES))


@pytest.mark.cpu
def test_the_same_prompt_reads_only_its_end(one: Served, fresh: dict[str, str]) -> None:
    one.engine.cache.clear()
    first, again = (one.ask(RULES + ASKED[0], id_slot=0, **SAMPLED) for _ in range(2))
    assert first.text == again.text == fresh[ASKED[0]]
    n = len(one.tokenize(RULES + ASKED[0]))
    assert (first.done.n_cached, again.done.n_cached >= n - BEFORE_END) == (0, True)


@pytest.mark.cpu
def test_an_answer_that_the_next_prompt_has_otherwise_is_cut_off(
    one: Served, fresh: dict[str, str]
) -> None:
    one.engine.cache.clear()
    one.ask(RULES + ASKED[0], n_predict=200)
    n = len(one.tokenize(RULES + ASKED[0]))
    following = RULES + ASKED[0] + "At B. And then?"
    turn = one.ask(following, **SAMPLED)
    assert turn.done.n_cached >= n - BEFORE_END
    assert turn.text == one.ask(following, cache_prompt=False, **SAMPLED).text


@pytest.mark.cpu
def test_a_third_chat_reads_nothing_of_what_two_had_alike(
    two: Served, fresh: dict[str, str]
) -> None:
    answers = [two.ask(RULES + end, **SAMPLED) for end in ASKED]
    assert [answer.text for answer in answers] == [fresh[end] for end in ASKED]
    read = [answer.done.n_cached for answer in answers]
    assert read[0] == 0
    assert read[1] >= n_rules(two) - EARLIER, "where the first made one before its end"
    assert read[2] >= n_rules(two) and read[3] >= n_rules(two)


@pytest.mark.cpu
def test_chats_that_come_at_once_read_what_they_have_alike_once(
    two: Served, fresh: dict[str, str]
) -> None:
    first, second = two.ask_all([RULES + end for end in ASKED[:2]], **SAMPLED)
    assert (first.done.n_cached, second.done.n_cached) == (0, n_rules(two))
    assert [first.text, second.text] == [fresh[end] for end in ASKED[:2]]


@pytest.mark.cpu
def test_choices_of_one_prompt_read_it_once(two: Served, fresh: dict[str, str]) -> None:
    answers = two.ask_all([RULES + ASKED[0]] * 2, **SAMPLED)
    assert [answer.text for answer in answers] == [fresh[ASKED[0]]] * 2
    n = len(two.tokenize(RULES + ASKED[0]))
    assert answers[1].done.n_cached == (n if two.backend.is_unified else n - BEFORE_END)


@pytest.mark.cpu
def test_a_copy_in_ram_comes_back_up_to_a_checkpoint(two: Served, fresh: dict[str, str]) -> None:
    for end in ASKED[:2]:
        two.ask(RULES + end, id_slot=0)
    while two.engine.cache.evict():
        pass
    answer = two.ask(RULES + ASKED[2], id_slot=1, **SAMPLED)
    assert answer.done.n_cached == n_rules(two)
    assert answer.text == fresh[ASKED[2]]


@pytest.mark.cpu
def test_without_checkpoints_all_is_read_again(
    two: Served, fresh: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two.engine.cache.checkpoints, "_limits", CacheLimits(0, 0))
    two.ask(RULES + ASKED[0], id_slot=0, n_predict=200, ignore_eos=True)
    second = two.ask(RULES + ASKED[1], id_slot=0, **SAMPLED)
    assert second.done.n_cached == 0
    assert second.text == fresh[ASKED[1]]


@pytest.mark.cpu
@pytest.mark.parametrize("n_other", [1, 17, 63, 200])
def test_a_window_is_cut_where_all_of_it_is_left(
    one: Served, model: str, monkeypatch: pytest.MonkeyPatch, n_other: int
) -> None:
    """As in llama-server, without a checkpoint: an edited question is read from the edit on."""
    monkeypatch.setattr(one.engine.cache.checkpoints, "_limits", CacheLimits(0, 0))
    one.engine.cache.clear()
    tokens = one.tokenize(RULES)[: 8 * WINDOW]
    n = len(tokens) - n_other
    one.ask(tokens, id_slot=0, n_predict=8)
    edited = [*tokens[:n], (tokens[n] + 1) % 200, *one.tokenize("Any trains?")]
    has_window = Path(model).stem in WINDOWED
    first_cut = one.backend.states.first_cut(0)
    assert first_cut < len(tokens) - 63 if has_window else first_cut > len(tokens)
    answer = one.ask(edited, **SAMPLED)
    assert answer.done.n_cached == (n if n >= first_cut else 0)
    assert answer.text == one.ask(edited, cache_prompt=False, **SAMPLED).text


@pytest.mark.cpu
@pytest.mark.parametrize("n_other", [20, 400])
def test_another_slot_takes_a_copy_of_a_cache_with_its_windows(
    two: Served, kind: tuple[str, bool], n_other: int
) -> None:
    """And cuts it where all of the window is there, or else at a checkpoint."""
    tokens = two.tokenize(RULES)[: 10 * WINDOW]
    n = len(tokens) - n_other
    two.ask(tokens, id_slot=0, n_predict=8)
    edited = [*tokens[:n], (tokens[n] + 1) % 200, *two.tokenize("Any trains?")]
    expected = two.ask(edited, id_slot=0, cache_prompt=False, **SAMPLED).text
    two.ask(tokens, id_slot=0, n_predict=8)
    answer = two.ask(edited, id_slot=1, **SAMPLED)
    assert answer.text == expected
    if kind[0] in WINDOWED and not kind[1]:
        last = len(tokens) - BEFORE_END - EARLIER
        assert answer.done.n_cached == (n if n_other == 20 else last)
        again = two.ask(tokens, id_slot=0, n_predict=8)
        assert again.done.n_cached >= len(tokens) - BEFORE_END, "the source is as it was"


def test_a_batch_may_be_smaller_than_those_of_the_warm_up(model: str) -> None:
    with serving(1, model=model, n_ctx=512, n_batch=4) as served:
        assert served.backend.n_batch < 32
        assert served.ask("Where is A?", n_predict=4).done.n_predicted == 4


def test_models_are_told_apart_by_their_architecture(one: Served, model: str) -> None:
    """llama.cpp would end the process if a part of DeepSeek V4's memory was shared."""
    assert architecture(one.backend._loaded.model) == Path(model).stem
    assert one.backend.can_copy


@pytest.mark.parametrize("name", ["deepseek4", "glm5-next"])
def test_cells_that_llama_cpp_cannot_share_are_not_shared(
    one: Served, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("worker.llama.model.architecture", lambda _model: name)
    assert not one.backend.can_copy


def test_a_cut_leaves_the_logits_of_a_fresh_sequence(one: Served) -> None:
    """Also where a window has dropped what a shorter sequence would see.

    Both are read in the same parts, for a GPU rounds larger and smaller parts otherwise.
    """
    backend: LlamaBackend = one.backend
    tokens = one.tokenize(RULES)[: 4 * WINDOW]
    backend.clear()
    backend.decode([BatchRow(0, 0, tokens[: 2 * WINDOW - 4], False)])
    state = backend.states.checkpoint(0)
    backend.decode([BatchRow(0, 2 * WINDOW - 4, tokens[2 * WINDOW - 4 : 2 * WINDOW], True)])
    expected = backend._logits(backend._batch.last[0])[:200].copy()
    backend.clear()
    backend.decode([BatchRow(0, 0, tokens[: 2 * WINDOW - 4], False)])
    for start in range(2 * WINDOW - 4, len(tokens), 32):
        backend.decode([BatchRow(0, start, tokens[start : start + 32], False)])
    assert backend.states.go_back(0, Checkpoint(2 * WINDOW - 4, 2 * WINDOW - 4, state))
    backend.decode([BatchRow(0, 2 * WINDOW - 4, tokens[2 * WINDOW - 4 : 2 * WINDOW], True)])
    found = backend._logits(backend._batch.last[0])[:200]
    assert found == pytest.approx(expected, abs=1e-3)
    backend.clear()


def test_a_cache_without_layers_is_not_shifted(tmp_path: Path) -> None:
    """llama.cpp would end the process."""
    path = str(write_lfm2(tmp_path / "lfm2.gguf", window=WINDOW))
    with running(path, 2, swa_full=True) as served:
        assert lib.llama_memory_can_shift(served.backend._memory)
        assert not served.backend.can_shift
        answers = [served.ask(RULES + end, **SAMPLED) for end in (*ASKED[:2], ASKED[0])]
        assert answers[0].text == answers[2].text


@pytest.mark.parametrize("name", WINDOWED)
def test_swa_full_keeps_as_many_cells_for_windows_so_that_a_context_can_be_shifted(
    tmp_path: Path, name: str
) -> None:
    path = str(WRITERS[name](tmp_path / "model.gguf"))
    for swa_full in (False, True):
        with running(path, 2, swa_full=swa_full) as served:
            assert served.backend.can_shift == swa_full
            assert served.backend.states.needs_checkpoints, "others are given cells of windows"
            tokens = served.tokenize(RULES)
            served.ask(tokens, id_slot=0)
            edited = [*tokens[:50], *served.tokenize("Any trains?")]
            assert served.ask(edited, id_slot=0).done.n_cached == (50 if swa_full else 0)
