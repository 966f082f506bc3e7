"""Makes room in contexts that are full, between two steps.

A context shift drops the tokens after `n_keep` (llama-server's rule). With self-extend older tokens
share positions instead.
"""

from worker.engine.backend import Backend
from worker.engine.cache.cache import PrefixCache
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.slot import Slot, SlotState


class ContextRoom:
    """Shifts or groups the positions of slots; used by the engine's thread only."""

    def __init__(
        self, backend: Backend, cache: PrefixCache, *, extend: SelfExtend | None, shifts: bool
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._extend = extend
        self.shifts = shifts and backend.can_shift and extend is None
        """Whether a full context is shifted; otherwise a task ends when its context is full."""

    def make(self) -> list[Slot]:
        """Make room where it is needed; return the slots whose shared cells cannot be moved."""
        if self._extend is not None:
            for slot in self._cache.slots:
                if slot.run is not None:
                    for move in self._extend.regroup(slot):
                        self._backend.regroup(slot.id, move)
        if not self.shifts:
            return []
        full = [slot for slot in self._cache.slots if _is_full(slot)]
        return [slot for slot in full if not self._shift(slot)]

    def _shift(self, slot: Slot) -> bool:
        params, n_tokens = slot.active.task.params, len(slot.tokens)
        n_keep = len(slot.active.task.prompt) if params.n_keep < 0 else params.n_keep
        n_keep = min(slot.n_ctx - 4, n_keep + self._backend.vocabulary.add_bos)
        n_left = n_tokens - n_keep
        n_discard = min(params.n_discard or n_left // 2, max(0, n_left - 1))
        if slot.n_shared > n_keep + n_discard and not self._unshare(slot):
            return False
        self._cache.unindex(slot, n_keep)
        self._backend.shift(slot.id, n_keep, n_keep + n_discard)
        del slot.tokens[n_keep : n_keep + n_discard]
        if slot.state is SlotState.PREFILL:
            del slot.active.reading[n_keep : n_keep + n_discard]
        slot.active.n_shifted += n_discard
        slot.active.generation.truncated = True
        return True

    def _unshare(self, slot: Slot) -> bool:
        """Give a slot cells of its own: moving a shared one would move it for all its owners.

        At once, however long it takes: a shift cannot wait, and shared cells are rarely shifted.
        """
        state = self._backend.states.copy(slot.id)
        if not self._backend.states.put(slot.id, state, len(slot.tokens)):
            return False
        slot.n_shared = 0
        return True


def _is_full(slot: Slot) -> bool:
    """Return whether a slot must be shifted; positions of an image cannot be moved in part.

    What another worker generated is shifted where that worker did it.
    """
    if slot.run is None or slot.room > 0 or slot.run.task.media:
        return False
    return slot.state is SlotState.DECODE or slot.n_prompt_left > 0
