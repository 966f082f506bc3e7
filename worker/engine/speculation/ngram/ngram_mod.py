"""Drafts from what followed the last tokens in any text of any slot: llama.cpp's ngram-mod.

One hash table of followers, of a fixed size. N-grams with the same hash share a place: a draft that
is wrong for that reason costs rows of a batch and nothing else.
"""

from array import array
from collections.abc import Sequence

from worker.engine.speculation.draft import Drafter, DraftRequest, follow

N_PLACES = 4 << 20
"""16 MiB, as llama.cpp has it."""
MAX_USED = 0.25
"""Maximum share of used places; a fuller table is emptied, because too many n-grams collide."""
_EMPTY = -1


class ModLookup(Drafter):
    """A `Drafter` over the tokens of all slots together."""

    def __init__(self, n_match: int, n_min: int, n_max: int, n_places: int = N_PLACES) -> None:
        self._n_match = n_match
        self._n_min = n_min
        self.n_max = n_max
        self._places = array("i", [_EMPTY]) * n_places
        self._n_used = 0
        self._known: dict[int, list[int]] = {}
        """By slot: the tokens that the table has already."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return a draft for each request from all texts."""
        for request in requests:
            self._note(request)
        return [self._draft(request) for request in requests]

    def _place(self, tokens: Sequence[int]) -> int:
        return hash(tuple(tokens)) % len(self._places)

    def _note(self, request: DraftRequest) -> None:
        known = self._known.setdefault(request.slot, [])
        n_known = follow(known, request.tokens)
        if self._n_used > MAX_USED * len(self._places):
            self._places = array("i", [_EMPTY]) * len(self._places)
            self._n_used = 0
        for at in range(max(self._n_match, n_known), len(known)):
            place = self._place(known[at - self._n_match : at])
            self._n_used += self._places[place] == _EMPTY
            self._places[place] = known[at]

    def _draft(self, request: DraftRequest) -> list[int]:
        if not self._n_match <= len(request.tokens) == len(self._known[request.slot]):
            return []
        window = list(request.tokens[-self._n_match :])
        found: list[int] = []
        while len(found) < min(request.n_max, self.n_max):
            token = self._places[self._place(window)]
            if token == _EMPTY:
                break
            found.append(token)
            window = [*window[1:], token]
        return request.kept(found, self._n_min)
