"""A long prompt is noted by the drafters in parts: one step would take 0.1 s for 120,000 tokens."""

from collections.abc import Callable

import pytest

from worker.engine.speculation import draft
from worker.engine.speculation.draft import Drafter, DraftRequest
from worker.engine.speculation.lookup import PromptLookup
from worker.engine.speculation.ngram.ngram_map import MapLookup
from worker.engine.speculation.ngram.ngram_mod import ModLookup
from worker.engine.speculation.ngram_cache import CacheLookup

TEXT = [1, 2, 7, 8, 9, *range(20, 60), 1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: PromptLookup(2, 3),
        lambda: MapLookup(2, 3),
        lambda: MapLookup(2, 3, counts=True),
        lambda: ModLookup(2, 0, 3, n_places=1009),
        lambda: CacheLookup({}, {}, 3),
    ],
    ids=["simple", "map-k", "map-k4v", "mod", "cache"],
)
def test_no_step_notes_more_than_a_part_of_a_text(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Drafter]
) -> None:
    more, texts = [7, 8], [[*TEXT], [*TEXT, 7]]
    at_once = make()
    wanted = [at_once.draft([DraftRequest(0, text, 3)]) for text in texts]
    monkeypatch.setattr(draft, "_MAX_NEW", 10)
    drafter, text = make(), [*TEXT]
    for _ in range(4):
        assert drafter.draft([DraftRequest(0, text, 3)]) == [[]]
    assert [drafter.draft([DraftRequest(0, text, 3)]) for text in texts] == wanted
    assert wanted[0] == [[7, 8, 9]] or isinstance(drafter, CacheLookup)
    cut = [*TEXT[:5], *more]
    assert drafter.draft([DraftRequest(0, cut, 3)]) == make().draft([DraftRequest(0, cut, 3)])
