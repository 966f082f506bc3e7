"""Guessing ahead: who is asked for tokens that a slot may choose next, and how many. Pure.

A draft costs rows in a batch and saves steps where it is right; it never changes a text, for each
token is still chosen by the slot's own sampler (`Results`).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from worker.engine.backend import Row
from worker.engine.slot import Slot


class Wish(NamedTuple):
    """A slot that could go several tokens in one step."""

    slot: int
    tokens: Sequence[int]
    """Everything so far, the chosen token that is not computed yet included."""
    n_max: int


class Drafter(Protocol):
    """Guesses what comes next; owned by the engine thread."""

    n_max: int
    """Most tokens of one guess."""

    def draft(self, wishes: Sequence[Wish]) -> list[list[int]]:
        """Return a guess for each wish, at most its `n_max` tokens; none is an empty one."""

    def learn(self, slot: int, tokens: Sequence[int]) -> None:
        """Take note of a text that is finished."""

    def close(self) -> None:
        """Free what it holds, and write down what it has learnt."""


class Drafters:
    """Asks several drafters in turn: who is asked first has the first guess."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = drafters
        self.n_max = max(drafter.n_max for drafter in drafters)

    def draft(self, wishes: Sequence[Wish]) -> list[list[int]]:
        """Return the first guess that anybody has for each wish."""
        guesses: dict[int, list[int]] = {}
        for drafter in self._drafters:
            left = [wish for wish in wishes if not guesses.get(wish.slot)]
            capped = [wish._replace(n_max=min(wish.n_max, drafter.n_max)) for wish in left]
            for wish, guess in zip(capped, drafter.draft(capped), strict=True):
                guesses[wish.slot] = guess[: wish.n_max]
        return [guesses[wish.slot] for wish in wishes]

    def learn(self, slot: int, tokens: Sequence[int]) -> None:
        """Tell all of them."""
        for drafter in self._drafters:
            drafter.learn(slot, tokens)

    def close(self) -> None:
        """Close all of them."""
        for drafter in self._drafters:
            drafter.close()


class Guessing:
    """Makes the rows of decoding slots: the one token of each, and the guesses that follow it."""

    def __init__(self, drafter: Drafter | None, *, n_slots: int, n_rows: int) -> None:
        self._drafter = drafter
        self._n_slots = n_slots
        """Guess while at most this many slots decode: more rows pay only in small batches."""
        self._n_rows = n_rows
        """Most guesses of one step."""

    def rows(self, slots: Sequence[Slot]) -> list[Row]:
        """Return one row for each decoding slot."""
        guesses = self._guesses(slots) if 0 < len(slots) <= self._n_slots else {}
        return [self._row(slot, guesses.get(slot.id, [])) for slot in slots]

    @staticmethod
    def _row(slot: Slot, guess: list[int]) -> Row:
        tokens = (slot.active.pending, *guess)
        return Row(slot.id, slot.n_pos, tokens, True, is_draft=bool(guess))

    def _guesses(self, slots: Sequence[Slot]) -> dict[int, list[int]]:
        drafter = self._drafter
        able = [slot for slot in slots if not slot.active.task.media]
        if drafter is None or not able:
            return {}
        room = [
            min(drafter.n_max, longest_guess(len(slot.tokens), slot.n_ctx, slot.active.n_left))
            for slot in able
        ]
        wishes = [
            Wish(slot.id, [*slot.tokens, slot.active.pending], share)
            for slot, share in zip(able, share_rows(room, self._n_rows), strict=True)
            if share
        ]
        guesses = drafter.draft(wishes)
        return {wish.slot: guess for wish, guess in zip(wishes, guesses, strict=True)}


def longest_guess(n_tokens: int, n_ctx: int, n_left: int) -> int:
    """Return how many guesses fit beside the pending token of a slot (llama-server's rule).

    `n_left` counts the tokens that the task may still generate, below 0 without a limit. One place
    stays free for the token that follows the last guess, and one for a context shift.
    """
    room = n_ctx - n_tokens - 2
    return max(0, min(room, n_left - 1) if n_left >= 0 else room)


def share_rows(wanted: Sequence[int], n_rows: int) -> list[int]:
    """Share `n_rows` among slots that want so many guesses: evenly, and none more than it wants."""
    shares = [0] * len(wanted)
    for n_done, i in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[i] = max(0, min(wanted[i], n_rows // (len(wanted) - n_done)))
        n_rows -= shares[i]
    return shares
