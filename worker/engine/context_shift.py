"""Makes room in a full context: the tokens after `n_keep` are dropped (llama-server's rule)."""

from collections.abc import Sequence

from worker.engine.backend import Backend
from worker.engine.cache.cache import PrefixCache
from worker.engine.slot import Slot, SlotState


class ContextShift:
    """Shifts contexts between two steps; the engine thread's alone."""

    def __init__(self, backend: Backend, cache: PrefixCache) -> None:
        self._backend = backend
        self._cache = cache

    def apply(self, slots: Sequence[Slot]) -> list[Slot]:
        """Shift the full contexts; return the slots that others share with and that cannot be."""
        full = [
            slot
            for slot in slots
            if slot.state is SlotState.DECODE
            and len(slot.tokens) + 1 >= slot.n_ctx
            and not slot.active.task.media  # positions of an image cannot be moved in part
        ]
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
        slot.active.n_shifted += n_discard
        slot.active.generation.truncated = True
        return True

    def _unshare(self, slot: Slot) -> bool:
        """Give a slot cells of its own: moving a shared one would move it for all its owners."""
        state = self._backend.states.copy(slot.id)
        if not self._backend.states.put(slot.id, state, len(slot.tokens)):
            return False
        slot.n_shared = 0
        return True
