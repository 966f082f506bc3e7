"""Guessing ahead and sharing prompts with the real llama.cpp."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from tests.models.llama import write_llama
from tests.models.shallow import N_LAYERS, N_TOKENS, exact_path
from tests.worker.conftest import model_path, serving
from tests.worker.served import Served, is_plausible
from worker.drafting import open_drafter
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.speculation.draft import Drafters, DraftRequest
from worker.llama.backend import LlamaBackend
from worker.llama.draft import CATCH_UP, DraftModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

CODE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n"
REPEAT = (
    f"<|im_start|>user\nRepeat this code exactly:\n{CODE * 2}<|im_end|>\n<|im_start|>assistant\n"
)
STORY = "Once upon a time there was"
STORYTELLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.0, "seed": 7, "repeat_penalty": 1.2},
    {"temperature": 0, "grammar": "root ::= [a-z ]+"},
)


@pytest.fixture(scope="module")
def draft_model() -> str:
    """The shallow model with finer weights: the same words, other opinions."""
    return exact_path(N_LAYERS, N_TOKENS)


@pytest.fixture(scope="module")
def lookup() -> Iterator[Served]:
    """One slot that looks its guesses up in its own text."""
    guesses = {"spec_type": ("ngram-simple",), "spec_ngram_size_n": 3, "spec_ngram_size_m": 8}
    with serving(1, **guesses) as one:
        yield one


@pytest.fixture(scope="module")
def drafting(draft_model: str) -> Iterator[Served]:
    """Two slots with a draft model."""
    with serving(2, model_draft=draft_model) as two:
        yield two


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.4, "seed": 5}], ids=str)
@pytest.mark.cpu
def test_a_text_with_lookup_is_the_text_without(
    single: Served, lookup: Served, params: dict[str, Any]
) -> None:
    asked = {"n_predict": 40, "cache_prompt": False} | params
    plain, guessed = single.ask(REPEAT, **asked), lookup.ask(REPEAT, **asked)
    assert guessed.text == plain.text
    assert guessed.done.timings.draft_n_accepted > 5
    assert plain.done.timings.draft_n == 0


@pytest.mark.parametrize("params", STORYTELLING, ids=str)
def test_a_seed_reproduces_its_text_with_a_draft_model(
    drafting: Served, params: dict[str, Any]
) -> None:
    asked = {"n_predict": 12, "cache_prompt": False} | params
    first, second = drafting.ask(STORY, **asked), drafting.ask(STORY, **asked)
    assert first.text == second.text != ""
    assert 0 < first.done.timings.draft_n_accepted < first.done.timings.draft_n


def test_a_request_may_want_surer_guesses(drafting: Served) -> None:
    asked = {"n_predict": 16, "cache_prompt": False, "temperature": 0}
    n_guessed = {
        p_min: drafting.ask(STORY, speculative_p_min=p_min, **asked).done.timings.draft_n
        for p_min in (0.0, 0.6, 1.0)
    }
    assert 0 == n_guessed[1.0] < n_guessed[0.6] < n_guessed[0.0]


def test_a_draft_model_leads_to_tokens_that_the_model_itself_would_choose(
    single: Served, drafting: Served
) -> None:
    answer = drafting.ask(STORY, n_predict=10, cache_prompt=False)
    assert len(answer.tokens) == 10
    is_plausible(single, STORY, answer)


def test_two_slots_draft_in_the_same_batches(single: Served, drafting: Served) -> None:
    prompts = [STORY, "The number seven is"]
    for prompt, answer in zip(prompts, drafting.ask_all(prompts, n_predict=8), strict=True):
        assert answer.done.timings.draft_n > 0
        is_plausible(single, prompt, answer)


def test_a_draft_follows_its_slot_through_other_prompts(drafting: Served) -> None:
    asked: dict[str, Any] = {"n_predict": 12, "cache_prompt": False, "id_slot": 0}
    before = drafting.ask(REPEAT, **asked)
    drafting.ask(STORY, **asked)
    after = drafting.ask(REPEAT, **asked)
    assert after.text == before.text
    assert after.done.timings.draft_n_accepted == before.done.timings.draft_n_accepted > 0


def test_a_draft_model_reads_a_long_prompt_in_few_steps_on_a_gpu(
    drafting: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafters = drafting.engine._drafter
    assert isinstance(drafters, Drafters)
    (drafter,) = drafters._drafters.values()
    assert isinstance(drafter, DraftModel)
    tokens = [7] * (CATCH_UP * 3 - 2)

    def n_steps() -> int:
        drafter.draft([DraftRequest(1, [9], 1)])  # forgets what it has read
        n = 1
        while drafter.draft([DraftRequest(1, tokens, 1)]) == [[]]:
            n += 1
        return n

    for n_read_at_once, n_expected in ((CATCH_UP, 3), (drafter._batch.capacity, 1)):
        monkeypatch.setattr(drafter, "_n_read_at_once", n_read_at_once)
        assert n_steps() == n_expected


def test_a_draft_model_with_another_vocabulary_is_refused(single: Served, tmp_path: Path) -> None:
    other = WorkerConfig(model_draft=str(write_llama(tmp_path / "other.gguf")), n_threads=2)
    with pytest.raises(ConfigError, match=r"other\.gguf: its .* the model's"):
        open_drafter(other, single.backend)


@pytest.mark.cpu
def test_a_model_that_generates_nothing_makes_no_drafts(tmp_path: Path) -> None:
    """llama.cpp would end the process with the first of several rows."""
    path = str(write_llama(tmp_path / "llama.gguf"))
    draft = str(write_llama(tmp_path / "llada.gguf", arch="llada"))
    config = WorkerConfig(model=path, model_draft=draft, n_threads=1)
    backend = LlamaBackend(config, lambda _fraction: None)
    with pytest.raises(ConfigError, match=r"llada\.gguf: it generates no text token by token"):
        open_drafter(config, backend)
    backend.close()


def test_a_draft_model_that_cannot_be_read_is_refused(single: Served, tmp_path: Path) -> None:
    config = WorkerConfig(model_draft=str(tmp_path / "none.gguf"))
    with pytest.raises(ConfigError, match=r"cannot load .*none\.gguf"):
        open_drafter(config, single.backend)


def test_a_recurrent_model_does_not_guess(caplog: pytest.LogCaptureFixture) -> None:
    from worker.engine.fake.backend import FakeBackend

    class Recurrent(FakeBackend):
        can_rewind = False

    config = WorkerConfig(backend="fake", spec_type=("ngram-simple",))
    assert open_drafter(config, Recurrent(config)) is None
    assert "no speculative decoding" in caplog.text


def test_eight_tasks_with_one_long_beginning_read_it_once(single: Served, served: Served) -> None:
    beginning = " ".join(f"word{i}" for i in range(125))
    before = served.engine.heartbeat().stats
    prompts = [f"{beginning} and {i}" for i in range(8)]
    answers = served.ask_all(prompts, n_predict=2)
    n_prompt = answers[0].done.n_prompt
    assert n_prompt > 380
    after = served.engine.heartbeat().stats
    assert after.n_prompt - before.n_prompt < n_prompt + 8 * 8
    for prompt, answer in zip(prompts, answers, strict=True):
        is_plausible(single, prompt, answer)


def test_choices_of_one_prompt_start_from_the_same_logits(served: Served) -> None:
    asked = [({"seed": i, "temperature": 1.0, "n_predict": 8, "n_probs": 3}) for i in range(4)]
    prompt = "Anna has a red kite. " * 16 + STORY  # long enough to be copied rather than read again
    answers = served.ask_each([(prompt, one) for one in asked])
    assert len({answer.text for answer in answers}) > 1
    assert len({answer.probs[0].top for answer in answers}) == 1
    assert sum(answer.done.timings.prompt_n for answer in answers[1:]) <= 3


@pytest.mark.cpu
def test_self_extend_reads_on_where_positions_are_shared() -> None:
    rules = SelfExtend(4, 64)
    story = "Anna has a red kite. " * 16 + "Anna has a"
    with serving(1, model=model_path(), warmup=False) as extended:
        engine = extended.engine
        engine._step._room._extend = rules
        engine.cache.is_on = engine.tasks._admission._cuts = False
        answers = [extended.ask(story, n_predict=12) for _ in range(2)]
        slot = engine.slots[0]
        assert slot.n_saved >= 48
        assert slot.n_pos == len(slot.tokens) - slot.n_saved
    assert answers[0].text == answers[1].text
    assert answers[1].done.n_cached == 0
    assert answers[0].text.startswith(" red kite.")
