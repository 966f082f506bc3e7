"""Drafts from what followed the last tokens of a text before: llama.cpp's ngram-map-k and -k4v.

Tokens of a draft that were rejected are not drafted again. Where values are counted, the follower
must be twice as frequent as all others together.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from worker.engine.cache.prefix import common_prefix
from worker.engine.speculation.draft import Drafter, DraftRequest, follow

MAX_VALUES = 4
"""Maximum number of different continuations that are counted for one key."""
_MAX_COUNTED = 256
"""Maximum number of occurrences that are counted, the latest ones: a text may repeat one token."""

Key = tuple[int, ...]


class _LastDraft(NamedTuple):
    """The last draft for a text; the next call counts how much of it was accepted."""

    key: Key
    at: int
    """Length of the text when it was made."""
    tokens: list[int]


@dataclass(slots=True)
class _NgramHistory:
    """One growing text; a cut resets it."""

    tokens: list[int] = field(default_factory=list)
    places: dict[Key, list[int]] = field(default_factory=dict)
    """Key to the positions behind its occurrences."""
    accepted: dict[Key, int] = field(default_factory=dict)
    hits: Counter[Key] = field(default_factory=Counter)
    last: _LastDraft | None = None


class MapLookup(Drafter):
    """A `Drafter` over the tokens of the slots themselves."""

    def __init__(self, size: int, n_max: int, *, min_hits: int = 1, counts: bool = False) -> None:
        """`counts`: the most frequent follower is taken, as ngram-map-k4v does."""
        self._size = size
        self._min_hits = min_hits
        self._counts = counts
        self.n_max = n_max
        self._histories: dict[int, _NgramHistory] = {}

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return a draft for each request from its own tokens."""
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> list[int]:
        history = self._follow(request)
        if not self._size <= len(history.tokens) == len(request.tokens):
            return []
        key = tuple(history.tokens[-self._size :])
        # What follows must be there as a whole, before the key at the end begins.
        latest = len(history.tokens) - self._size - self.n_max
        known = history.places.get(key, [])
        n_places = bisect_right(known, latest)
        if not n_places:
            return []
        places = known[max(0, n_places - _MAX_COUNTED) : n_places] if self._counts else known[:1]
        history.hits[key] += 1
        start = self._choose(history.tokens, places)
        if start is None or history.hits[key] < self._min_hits:
            return []
        n = min(request.n_max, self.n_max, history.accepted.get(key, self.n_max))
        found = request.kept(history.tokens[start : start + n], 0)
        history.last = _LastDraft(key, len(history.tokens), found)
        return found

    def _choose(self, tokens: list[int], places: list[int]) -> int | None:
        """Return where the follower begins; None if there is no clear one."""
        if not self._counts:
            return places[0]
        values = Counter(tuple(tokens[at : at + self.n_max]) for at in places)
        (value, n), *others = values.most_common(MAX_VALUES)
        if n < 2 * sum(count for _, count in others):
            return None
        return next(at for at in places if tuple(tokens[at : at + self.n_max]) == value)

    def _follow(self, request: DraftRequest) -> _NgramHistory:
        """Take the current text, and count how much of the last draft was accepted."""
        history = self._histories.setdefault(request.slot, _NgramHistory())
        n_known = follow(history.tokens, request.tokens)
        if not n_known:
            history = self._histories[request.slot] = _NgramHistory(history.tokens)
        if (last := history.last) is not None and len(request.tokens) > last.at:
            n_right = common_prefix(last.tokens, request.tokens[last.at :])
            history.accepted[last.key] = n_right
            history.last = None
        for at in range(max(self._size, n_known), len(history.tokens)):
            history.places.setdefault(tuple(history.tokens[at - self._size : at]), []).append(at)
        return history
