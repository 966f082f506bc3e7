"""The kinds of guessing that llama.cpp calls ngram-map and ngram-mod."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from tests.worker.engines import Rig
from worker.drafting import open_drafter
from worker.engine.fake.backend import FakeBackend
from worker.engine.speculation.draft import Drafters, DraftRequest
from worker.engine.speculation.ngram import ngram_map
from worker.engine.speculation.ngram.ngram_map import MapLookup
from worker.engine.speculation.ngram.ngram_mod import ModLookup
from worker.speculation.kinds import longest_draft


def wish(tokens: Sequence[int], slot: int = 0, n_max: int = 100) -> DraftRequest:
    return DraftRequest(slot, list(tokens), n_max)


def test_a_map_guesses_what_followed_the_key_the_first_time() -> None:
    lookup = MapLookup(2, 3)
    assert lookup.draft([wish([1, 2, 7, 8, 9, 5, 1, 2])]) == [[7, 8, 9]]
    assert lookup.draft([wish([1, 2, 7, 8, 9, 5, 1, 2], n_max=2)]) == [[7, 8]]
    assert lookup.draft([wish([3, 4], slot=1)]) == [[]]


def test_a_map_does_not_guess_again_what_was_refused() -> None:
    lookup = MapLookup(2, 3)
    text = [1, 2, 7, 8, 9, 5, 1, 2]
    assert lookup.draft([wish(text)]) == [[7, 8, 9]]
    text += [7, 6, 6, 6, 1, 2]  # one of the three was right
    assert lookup.draft([wish(text)]) == [[7]]


def test_a_text_that_was_cut_is_followed_anew() -> None:
    lookup = MapLookup(2, 2)
    lookup.draft([wish([1, 2, 7, 7, 5, 1, 2])])
    assert lookup.draft([wish([1, 2, 8, 8, 5, 5, 1, 2])]) == [[8, 8]]


def test_counted_values_must_be_clear_and_frequent_enough() -> None:
    once, twice = [1, 2, 7, 7], [1, 2, 8, 8]
    end = [9, 9, 1, 2]
    lookup = MapLookup(2, 2, counts=True)
    assert lookup.draft([wish(once + twice + twice + end)]) == [[8, 8]]
    lookup = MapLookup(2, 2, counts=True)
    assert lookup.draft([wish(once + twice + end)]) == [[]]
    lookup = MapLookup(2, 2, min_hits=2, counts=True)
    assert lookup.draft([wish(twice + end)]) == [[]]
    assert lookup.draft([wish(twice + end)]) == [[8, 8]]


def test_of_a_token_that_is_repeated_without_end_the_latest_occurrences_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counting all of 32,000 took 26 ms in each step of the engine."""
    n_counted = list[int]()

    class Counted(Counter[tuple[int, ...]]):
        def update(self, iterable: Any = None, /, **more: int) -> None:
            values = list(iterable or ())
            n_counted.append(len(values))
            super().update(values, **more)

    lookup = MapLookup(2, 2, counts=True)
    monkeypatch.setattr(ngram_map, "Counter", Counted)
    assert lookup.draft([wish([5] * 3000)]) == [[5, 5]]
    assert n_counted == [256]


def test_the_table_of_ngram_mod_is_shared_by_all_slots() -> None:
    lookup = ModLookup(2, 1, 4, n_places=1 << 16)
    assert lookup.draft([wish([1, 2, 7, 8, 9])]) == [[]]
    assert lookup.draft([wish([5, 1, 2], slot=1)]) == [[7, 8, 9]]


def test_a_short_guess_of_ngram_mod_is_none() -> None:
    lookup = ModLookup(2, 4, 4, n_places=1 << 16)
    lookup.draft([wish([1, 2, 7, 8, 9])])
    assert lookup.draft([wish([1, 2], slot=1)]) == [[]]


def test_a_full_table_of_ngram_mod_begins_anew() -> None:
    lookup = ModLookup(1, 1, 2, n_places=8)
    lookup.draft([wish(range(20))])
    assert lookup.draft([wish([100, 101], slot=1)]) == [[]]
    assert lookup._n_used <= 1


@pytest.mark.parametrize("kind", ["ngram-map-k", "ngram-map-k4v", "ngram-mod"])
def test_a_text_that_repeats_is_the_same_in_fewer_steps(kind: str) -> None:
    config = WorkerConfig(
        backend="fake",
        spec_type=(kind,),
        spec_map_size_n=3,
        spec_map_size_m=4,
        spec_map4_size_n=3,
        spec_map4_size_m=4,
        spec_mod_match=3,
        spec_mod_min=1,
        spec_mod_max=4,
    )
    assert longest_draft(config) == 4
    drafter = open_drafter(config, FakeBackend(config))
    assert isinstance(drafter, Drafters)
    plain, guessing = Rig(), Rig(drafter=drafter)
    for rig in (plain, guessing):
        rig.submit("abcdefabcdefabcdef", n_predict=12)
        rig.finish()
    assert guessing.text(0) == plain.text(0)
