"""Guessing ahead: the same texts in fewer steps, with the counts of what was right."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.wire.messages import Delta, Finish
from protocol.wire.sampling import SamplingParams
from tests.worker.engines import Rig
from worker.drafting import open_drafter
from worker.engine.fake.backend import FakeBackend
from worker.engine.speculation.draft import Drafters, DraftRequest, draft_room, share_rows
from worker.engine.speculation.lookup import NgramIndex, PromptLookup
from worker.engine.speculation.ngram_cache import CacheLookup
from worker.speculation.kinds import kinds, longest_draft, with_speculation

TOKENS = st.lists(st.integers(0, 3), max_size=60)


class Script:
    """Guesses from texts that are known beforehand, with a wrong token at every n-th place."""

    n_max = 5

    def __init__(self, *texts: str, wrong_at: int = 0) -> None:
        self._texts = [list(text.encode()) for text in texts]
        self._wrong_at = wrong_at

    def draft(self, wishes: Sequence[DraftRequest]) -> list[list[int]]:
        """Continue the longest known text that fits."""
        return [self._guess(wish) for wish in wishes]

    def _guess(self, wish: DraftRequest) -> list[int]:
        for text in self._texts:
            for n in range(min(len(text), len(wish.tokens)), 0, -1):
                if list(wish.tokens[-n:]) == text[:n]:
                    guess = text[n : n + wish.n_max]
                    if 0 < self._wrong_at <= len(guess):
                        guess[self._wrong_at - 1] = 0
                    return guess
        return []

    def learn(self, slot: int, tokens: Sequence[int]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def tokens_of(rig: Rig, task: int) -> list[tuple[int, ...]]:
    return [one.tokens for one in rig.of(task) if isinstance(one, Delta)]


def plain(prompt: str, **params: Any) -> Rig:
    rig = Rig()
    rig.submit(prompt, **params)
    rig.finish()
    return rig


@pytest.mark.parametrize("wrong_at", [0, 1, 2, 4])
@pytest.mark.parametrize(
    "params",
    [
        {"n_predict": 40},
        {"n_predict": 7},
        {"n_predict": 1},
        {"n_predict": 40, "temperature": 0.8, "seed": 3},
        {"n_predict": 40, "stop": ["a"]},
        {"n_predict": 30, "n_probs": 1},
    ],
    ids=str,
)
def test_a_text_is_the_same_with_guesses_right_or_wrong(
    wrong_at: int, params: dict[str, Any]
) -> None:
    alone = plain("tell me more", **params)
    rig = Rig(
        drafter=Script(plain("tell me more", **params | {"stop": []}).text(1), wrong_at=wrong_at)
    )
    task = rig.submit("tell me more", **params)
    rig.finish()
    assert rig.text(task) == alone.text(1)
    assert rig.done(task).finish is alone.done(1).finish
    assert rig.done(task).n_past == alone.done(1).n_past
    assert tokens_of(rig, task) == tokens_of(alone, 1)


def test_right_guesses_save_steps_and_are_counted() -> None:
    alone = plain("tell me more", n_predict=40)
    rig = Rig(drafter=Script(alone.text(1)))
    task = rig.submit("tell me more", n_predict=40)
    rig.finish()
    timings = rig.done(task).timings
    assert timings.predicted_n == 40
    assert timings.draft_n == timings.draft_n_accepted == 32
    assert len(rig.steps) < len(alone.steps) / 3
    stats = rig.engine.heartbeat().stats
    assert (stats.n_draft, stats.n_draft_accepted, stats.n_drafts) == (32, 32, 7)
    assert stats.accepted_at == (7, 7, 6, 6, 6)


def test_wrong_guesses_leave_no_cells_behind() -> None:
    rig = Rig(drafter=Script(plain("hello", n_predict=30).text(1), wrong_at=3))
    task = rig.submit("hello", n_predict=30)
    while rig.engine.n_busy or not rig.emitted:
        rig.turn()
        for slot in rig.engine.slots:
            assert slot.tokens == rig.backend._cells.get(slot.id, [])
    assert 0 < rig.done(task).timings.draft_n_accepted < rig.done(task).timings.draft_n


def test_a_full_context_ends_a_text_at_the_same_token_with_guesses() -> None:
    alone = Rig(n_ctx=64)
    alone.submit("x" * 40, n_predict=-1)
    alone.finish()
    rig = Rig(n_ctx=64, drafter=Script(alone.text(1)))
    task = rig.submit("x" * 40, n_predict=-1)
    rig.finish()
    assert rig.text(task) == alone.text(1)
    assert rig.done(task).finish is Finish.LIMIT
    assert rig.done(task).truncated


def test_shifting_goes_on_with_guesses() -> None:
    rig = Rig(n_ctx=64, context_shift=True, drafter=PromptLookup(2, 6))
    task = rig.submit("x" * 40, n_predict=200)
    rig.finish()
    assert rig.done(task).n_predicted == 200


def test_nobody_guesses_when_more_slots_decode_than_allowed() -> None:
    rig = Rig(n_slots=3, drafter=Script(plain("hello", n_predict=30).text(1)), spec_slots=2)
    tasks = [rig.submit("hello", n_predict=30) for _ in range(3)]
    rig.finish()
    assert all(rig.done(task).timings.draft_n == 0 for task in tasks)


# ---- pure parts -------------------------------------------------------------------------------


@given(tokens=TOKENS, size=st.integers(1, 4), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_lookup_finds_what_followed_the_last_occurrence(
    tokens: list[int], size: int, cuts: list[int]
) -> None:
    index = NgramIndex(size)
    for cut in sorted(cuts):
        index.follow(tokens[:cut])
    index.follow(tokens)
    found = index.followers(5)
    suffix = tokens[-size:]
    ends = [
        end
        for end in range(size, len(tokens))
        if len(suffix) == size and tokens[end - size : end] == suffix
    ]
    assert found == (tokens[ends[-1] : ends[-1] + 5] if ends else [])


@given(first=TOKENS, second=TOKENS)
def test_lookup_forgets_a_text_that_was_cut(first: list[int], second: list[int]) -> None:
    used, fresh = NgramIndex(2), NgramIndex(2)
    used.follow(first)
    used.follow(second)
    fresh.follow(second)
    assert used.followers(8) == fresh.followers(8)


@given(wanted=st.lists(st.integers(0, 64), min_size=1, max_size=8), n_rows=st.integers(-3, 200))
def test_rows_are_shared_evenly_and_none_is_wasted(wanted: list[int], n_rows: int) -> None:
    shares = share_rows(wanted, n_rows)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) <= max(0, n_rows)
    if n_rows >= sum(wanted):
        assert shares == wanted


@pytest.mark.parametrize(
    ("n_tokens", "n_ctx", "n_left", "n"),
    [
        (10, 64, -1, 52),
        (10, 64, 5, 4),
        (62, 64, -1, 0),
        (63, 64, -1, 0),
        (10, 64, 1, 0),
        (10, 64, 0, 0),
    ],
)
def test_guesses_never_go_beyond_context_or_limit(
    n_tokens: int, n_ctx: int, n_left: int, n: int
) -> None:
    assert draft_room(n_tokens, n_ctx, n_left) == n


def test_the_second_drafter_is_asked_where_the_first_has_no_guess() -> None:
    both = Drafters({"ngram-simple": PromptLookup(2, 4), "draft-simple": Script("ab" * 9)})
    repeated = [7, 8, 9, 7, 8]
    wishes = [DraftRequest(0, repeated, 4), DraftRequest(1, list(b"xab"), 3)]
    assert both.draft(wishes) == [[9, 7, 8], list(b"aba")]
    assert both.n_max == 5


def test_a_wish_may_name_who_guesses_and_how_long_a_guess_must_be() -> None:
    both = Drafters({"ngram-simple": PromptLookup(2, 4), "draft-simple": Script("ab" * 9)})
    tokens = list(b"ababab")
    assert both.draft([DraftRequest(0, tokens, 3, kinds=("draft-simple",))]) == [list(b"aba")]
    assert both.draft([DraftRequest(0, tokens, 4, kinds=("ngram-simple",))]) == [list(b"abab")[:2]]
    assert both.draft([DraftRequest(0, tokens, 4, n_min=3, kinds=("ngram-simple",))]) == [[]]
    assert PromptLookup(2, 4, 3).draft(
        [DraftRequest(0, tokens, 4), DraftRequest(1, tokens, 4, n_min=0)]
    ) == [
        [],
        list(b"ab"),
    ]
    assert CacheLookup({}, {}, 4).draft([DraftRequest(0, tokens, 4, n_min=5)]) == [[]]


@pytest.mark.parametrize(
    ("params", "n_draft"),
    [
        ({}, 32),
        ({"speculative_n_max": 2}, 26),
        ({"speculative_n_max": 0}, 0),
        ({"speculative_n_max": 50}, 32),
        ({"speculative_types": ("none",)}, 0),
        ({"speculative_types": ("draft-simple",)}, 32),
        ({"speculative_types": ("ngram-simple",)}, 0),
    ],
)
def test_a_request_may_want_fewer_guesses_or_none(params: dict[str, Any], n_draft: int) -> None:
    alone = plain("tell me more", n_predict=40)
    rig = Rig(drafter=Drafters({"draft-simple": Script(alone.text(1))}))
    task = rig.submit("tell me more", n_predict=40, **params)
    rig.finish()
    assert rig.text(task) == alone.text(1)
    assert rig.done(task).timings.draft_n == n_draft


def test_the_defaults_of_requests_tell_how_a_worker_guesses() -> None:
    both = WorkerConfig(
        model_draft="d.gguf", spec_type=("ngram-simple",), n_draft_min=2, draft_p_min=0.375
    )
    told = with_speculation(both).sampling
    assert told.speculative_types == ("ngram-simple", "draft-simple")
    assert (told.speculative_n_max, told.speculative_n_min) == (48, 2)
    assert told.speculative_p_min == 0.375
    nobody = with_speculation(WorkerConfig()).sampling
    assert (nobody.speculative_types, nobody.speculative_n_max) == (("none",), 0)


def test_a_configuration_may_want_less_than_its_worker_could() -> None:
    sampling = SamplingParams(speculative_types=("none",), speculative_n_max=99)
    told = with_speculation(WorkerConfig(spec_type=("ngram-simple",), sampling=sampling)).sampling
    assert (told.speculative_types, told.speculative_n_max) == (("none",), 48)
    odd = SamplingParams(speculative_types=("ngram-cache",))
    with pytest.raises(ConfigError, match="ngram-cache is not among none"):
        with_speculation(WorkerConfig(sampling=odd))


def test_a_draft_model_without_its_file_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """llama-server serves without drafting, so this does too."""
    told = with_speculation(WorkerConfig(spec_type=("draft-simple",))).sampling
    assert told.speculative_types == ("none",)
    assert "spec_type draft-simple has no model" in caplog.text


def test_drafters_follow_from_the_files_that_are_given() -> None:
    assert kinds(WorkerConfig()) == ()
    assert longest_draft(WorkerConfig()) == 0
    assert kinds(WorkerConfig(model_draft="d.gguf")) == ("draft-simple",)
    assert kinds(WorkerConfig(model_draft="d.gguf", spec_type=("none",))) == ()
    both = WorkerConfig(model_draft="d.gguf", spec_type=("ngram-simple",))
    assert kinds(both) == ("ngram-simple", "draft-simple")
    assert kinds(WorkerConfig(spec_type=("draft-simple", "ngram-mod"))) == ("ngram-mod",)
    heads = WorkerConfig(model_draft="head.gguf", spec_type=("draft-mtp", "ngram-mod"))
    assert kinds(heads) == ("ngram-mod",)
    with pytest.raises(ConfigError, match="ngram-odd"):
        kinds(WorkerConfig(spec_type=("ngram-odd",)))


@pytest.mark.parametrize(
    ("fields", "guess"),
    [
        ({}, list(b"cdeXab")),
        ({"spec_ngram_size_m": 2}, list(b"cd")),
        ({"spec_ngram_size_n": 3}, []),
        ({"n_draft_min": 6}, list(b"cdeXab")),
        ({"n_draft_min": 7}, []),
    ],
    ids=str,
)
def test_a_configuration_says_what_the_lookup_looks_for_and_how_long_it_guesses(
    fields: dict[str, Any], guess: list[int]
) -> None:
    defaults = {"spec_ngram_size_n": 2, "spec_ngram_size_m": 16, "n_draft_min": 0}
    config = WorkerConfig(backend="fake", spec_type=("ngram-simple",), **defaults | fields)
    drafter = open_drafter(config, FakeBackend(config))
    assert drafter is not None
    assert drafter.n_max == longest_draft(config) == config.spec_ngram_size_m
    assert drafter.draft([DraftRequest(0, list(b"abcdeXab"), config.spec_ngram_size_m)]) == [guess]


def test_a_configuration_says_how_long_the_others_guess() -> None:
    by_model = WorkerConfig(model_draft="d.gguf", n_draft=7)
    by_cache = WorkerConfig(lookup_cache_dynamic="d.bin", n_draft=7)
    for config in (by_model, by_cache):
        assert longest_draft(config) == 7
        assert with_speculation(config).sampling.speculative_n_max == 7
