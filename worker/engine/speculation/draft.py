"""Speculative decoding: which drafter proposes tokens for which slot, and how many. Pure.

A draft costs rows in a batch and saves steps where it is right. It never changes a text, because
each token is still chosen by the slot's own sampler (`SampleProcessor`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from protocol.wire.sampling import SamplingParams
from worker.engine.backend import BatchRow
from worker.engine.cache.prefix import common_prefix
from worker.engine.slot import Slot

_MAX_NEW = 4096
"""Maximum number of tokens of a text that drafters note in one step, which takes 2 to 5 ms."""


class DraftRequest(NamedTuple):
    """A slot that could decode several tokens in one step."""

    slot: int
    tokens: Sequence[int]
    """All tokens so far, with the chosen one that is not computed yet."""
    n_max: int
    n_min: int | None = None
    """Minimum number of tokens of a draft; None is the drafter's own limit."""
    p_min: float | None = None
    """Minimum probability of a token from a draft model; None is the model's own limit."""
    kinds: tuple[str, ...] = ()
    """Kinds of drafters that may propose; empty is all."""

    def kept(self, draft: list[int], n_min: int) -> list[int]:
        """Return a draft, empty if it is too short; `n_min` is the drafter's own limit."""
        return draft if len(draft) >= (n_min if self.n_min is None else self.n_min) else []


class Drafter(Protocol):
    """Proposes the next tokens; used by the engine's thread only."""

    n_max: int
    """Maximum number of tokens of one draft."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return a draft for each request, of at most its `n_max` tokens, or an empty one."""

    def learn(self, slot: int, tokens: Sequence[int]) -> None:
        """Learn from a finished text; by default nothing."""
        return

    def close(self) -> None:
        """Free its memory, and save what it has learnt; by default there is nothing to do."""
        return


class Drafters:
    """Asks several drafters in order and takes the first draft."""

    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        """Take the drafters by their kinds."""
        self._drafters = drafters
        self.n_max = max(drafter.n_max for drafter in drafters.values())

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Return the first draft of any drafter for each request."""
        drafts: dict[int, list[int]] = {request.slot: [] for request in requests}
        for kind, drafter in self._drafters.items():
            left = [
                request
                for request in requests
                if not drafts[request.slot] and kind in (request.kinds or self._drafters)
            ]
            capped = [request._replace(n_max=min(request.n_max, drafter.n_max)) for request in left]
            for request, draft in zip(capped, drafter.draft(capped), strict=True):
                drafts[request.slot] = draft[: request.n_max]
        return [drafts[request.slot] for request in requests]

    def learn(self, slot: int, tokens: Sequence[int]) -> None:
        """Tell all of them."""
        for drafter in self._drafters.values():
            drafter.learn(slot, tokens)

    def close(self) -> None:
        """Close all of them."""
        for drafter in self._drafters.values():
            drafter.close()


class Speculator:
    """Makes the rows of decoding slots: one token each, and the draft that follows it."""

    def __init__(self, drafter: Drafter | None, *, n_slots: int, n_rows: int) -> None:
        self._drafter = drafter
        self._n_slots = n_slots
        """Draft while at most this many slots decode: more rows pay only in small batches."""
        self._n_rows = n_rows
        """Maximum number of drafted tokens of one step."""

    def rows(self, slots: Sequence[Slot], n_free: int) -> list[BatchRow]:
        """Return one row for each decoding slot; the batch takes `n_free` tokens beside these."""
        n_drafted = min(self.max_drafted(len(slots)), n_free)
        if n_drafted <= 0:
            return [BatchRow(slot.id, slot.n_pos, (slot.active.pending,), True) for slot in slots]
        drafts = self._drafts(slots, n_drafted)
        return [self._row(slot, drafts.get(slot.id, [])) for slot in slots]

    def max_drafted(self, n_slots: int) -> int:
        """Return the maximum number of drafted tokens of a step in which `n_slots` decode."""
        is_on = self._drafter is not None and 0 < n_slots <= self._n_slots
        return self._n_rows if is_on else 0

    @staticmethod
    def _row(slot: Slot, draft: list[int]) -> BatchRow:
        tokens = (slot.active.pending, *draft)
        return BatchRow(slot.id, slot.n_pos, tokens, True, is_draft=bool(draft))

    def _drafts(self, slots: Sequence[Slot], n_rows: int) -> dict[int, list[int]]:
        drafter = self._drafter
        able = [slot for slot in slots if not slot.active.task.media]
        if drafter is None or not able:
            return {}
        room = [
            min(
                longest_wanted(slot.active.task.params, drafter.n_max),
                draft_room(len(slot.tokens), slot.n_ctx, slot.active.n_left),
            )
            for slot in able
        ]
        requests = [
            _request(slot, share)
            for slot, share in zip(able, share_rows(room, n_rows), strict=True)
            if share
        ]
        drafts = drafter.draft(requests)
        return {request.slot: draft for request, draft in zip(requests, drafts, strict=True)}


def _request(slot: Slot, n_max: int) -> DraftRequest:
    run = slot.active
    params = run.task.params
    return DraftRequest(
        slot.id,
        [*slot.tokens, run.pending],
        n_max,
        n_min=params.speculative_n_min,
        p_min=params.speculative_p_min,
        kinds=params.speculative_types,
    )


def follow(known: list[int], text: Sequence[int]) -> int:
    """Make `known` equal to a text that has usually grown by a few tokens.

    Returns how many of its tokens were known. After a cut that is 0: what was derived from them is
    void. Of a long text only a part becomes known at once: `known` is shorter then, and no draft
    can be made.
    """
    n_known = len(known)
    if common_prefix(known, text) < n_known:
        known.clear()
        n_known = 0
    known.extend(text[n_known : n_known + _MAX_NEW])
    return n_known


def longest_wanted(params: SamplingParams, n_max: int) -> int:
    """Return how many drafted tokens a request allows, of at most `n_max`."""
    if "none" in params.speculative_types:
        return 0
    wanted = params.speculative_n_max
    return n_max if wanted is None else min(n_max, wanted)


def draft_room(n_tokens: int, n_ctx: int, n_left: int) -> int:
    """Return how many drafted tokens fit after the pending one (llama-server's rule).

    `n_left` counts the tokens that the task may still generate, below 0 without a limit. One place
    stays free for the token that follows the last drafted token, and one for a context shift.
    """
    room = n_ctx - n_tokens - 2
    return max(0, min(room, n_left - 1) if n_left >= 0 else room)


def share_rows(wanted: Sequence[int], n_rows: int) -> list[int]:
    """Share `n_rows` evenly among slots; no slot gets more than it wants."""
    shares = [0] * len(wanted)
    for n_done, i in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[i] = max(0, min(wanted[i], n_rows // (len(wanted) - n_done)))
        n_rows -= shares[i]
    return shares
