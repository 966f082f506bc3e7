"""Guesses from what followed the last words in any text of any slot: llama.cpp's ngram-mod.

One table of followers, of a fixed size, whose places are shared by whatever falls on them: a wrong
guess costs rows of a batch and nothing else.
"""

from array import array
from collections.abc import Sequence

from worker.engine.cache.prefix import common_prefix
from worker.engine.speculation.draft import DraftRequest

N_PLACES = 4 << 20
"""16 MiB, as llama.cpp has it."""
MOST_USED = 0.25
"""Fuller than this the table begins anew: too much falls together."""
_EMPTY = -1


class ModLookup:
    """A `Drafter` over the tokens of all slots together."""

    def __init__(self, n_match: int, n_min: int, n_max: int, n_places: int = N_PLACES) -> None:
        self._n_match = n_match
        self._n_min = n_min
        self.n_max = n_max
        self._places = array("i", [_EMPTY]) * n_places
        self._n_used = 0
        self._known: dict[int, list[int]] = {}
        """What was noted of each slot's text."""

    def draft(self, wishes: Sequence[DraftRequest]) -> list[list[int]]:
        """Guess for each wish from all texts."""
        for wish in wishes:
            self._note(wish)
        return [self._guess(wish) for wish in wishes]

    def learn(self, slot: int, tokens: Sequence[int]) -> None:
        """Nothing to note: texts are noted while they grow."""

    def close(self) -> None:
        """Nothing to free."""

    def _place(self, tokens: Sequence[int]) -> int:
        return hash(tuple(tokens)) % len(self._places)

    def _note(self, wish: DraftRequest) -> None:
        known = self._known.setdefault(wish.slot, [])
        if common_prefix(known, wish.tokens) < len(known):
            known.clear()
        n_known = len(known)
        known.extend(wish.tokens[n_known:])
        if self._n_used > MOST_USED * len(self._places):
            self._places = array("i", [_EMPTY]) * len(self._places)
            self._n_used = 0
        for at in range(max(self._n_match, n_known), len(known)):
            place = self._place(known[at - self._n_match : at])
            self._n_used += self._places[place] == _EMPTY
            self._places[place] = known[at]

    def _guess(self, wish: DraftRequest) -> list[int]:
        if len(wish.tokens) < self._n_match:
            return []
        window = list(wish.tokens[-self._n_match :])
        guess: list[int] = []
        while len(guess) < min(wish.n_max, self.n_max):
            token = self._places[self._place(window)]
            if token == _EMPTY:
                break
            guess.append(token)
            window = [*window[1:], token]
        return wish.kept(guess, self._n_min)
