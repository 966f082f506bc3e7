"""Prompt lookup: draft what followed the last tokens where they occurred before. Pure.

llama-server's `ngram-simple` (common/ngram-map.cpp): texts that repeat their prompt (summaries,
edits, code) get drafts of many tokens, which cost nothing but rows of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.engine.speculation.draft import Drafter, DraftRequest, follow


@dataclass(slots=True)
class NgramIndex:
    """Where each n-gram of one growing text occurred last; follows cuts by starting over."""

    size: int
    _tokens: list[int] = field(default_factory=list)
    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    """N-gram to the position behind its last occurrence that has a follower."""

    def follow(self, tokens: Sequence[int]) -> bool:
        """Index the current text; usually it has grown by a few tokens.

        Returns whether that is done: the rest of a long text follows in the next steps.
        """
        n_known = follow(self._tokens, tokens)
        if not n_known:
            self._after.clear()
        # A follower at i makes the n-gram before it known; the one at the very end has none yet.
        for i in range(max(self.size, n_known), len(self._tokens)):
            self._after[tuple(self._tokens[i - self.size : i])] = i
        return len(self._tokens) == len(tokens)

    def followers(self, n_max: int) -> list[int]:
        """Return what followed the last occurrence of the n-gram at the end, or nothing."""
        if n_max <= 0 or len(self._tokens) < self.size:
            return []
        start = self._after.get(tuple(self._tokens[-self.size :]))
        return [] if start is None else self._tokens[start : start + n_max]


class PromptLookup(Drafter):
    """A `Drafter` over the tokens of the slots themselves."""

    def __init__(self, size: int, n_max: int, n_min: int = 0) -> None:
        self._size = size
        self._n_min = n_min
        self.n_max = n_max
        self._indexes: dict[int, NgramIndex] = {}

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return a draft for each request from its own tokens."""
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> list[int]:
        index = self._indexes.setdefault(request.slot, NgramIndex(self._size))
        if not index.follow(request.tokens):
            return []
        found = index.followers(min(request.n_max, self.n_max))
        return request.kept(found, self._n_min)
