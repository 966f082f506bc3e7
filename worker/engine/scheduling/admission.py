"""Which slot a task gets, whether its cells are free, and what the slot keeps for it."""

from collections.abc import Sequence

from worker.engine.cache.cache import PrefixCache
from worker.engine.cache.prefix import common_prefix, reusable
from worker.engine.media import whole_pieces
from worker.engine.slot import CacheNamespace, Slot, SlotState
from worker.engine.task import EngineTask

_RESERVE = 256
"""Most cells that are reserved for an answer. Source: most answers are shorter, whatever limit is
sent with them, and a longer one may be preempted."""


class Admission:
    """Chooses slots by what they hold; used by the engine's thread only."""

    def __init__(self, cache: PrefixCache, n_ctx: int, similarity: float, *, cuts: bool) -> None:
        """`n_ctx` is a slot's context; without `cuts` a slot's tokens cannot be kept in part."""
        self._cache = cache
        self._slots = cache.slots
        self._n_ctx = n_ctx
        self._n_cells = cache.counters.n_kv
        self._is_scarce = len(self._slots) * n_ctx > self._n_cells
        self._similarity = similarity
        self._cuts = cuts

    def awaits_slot(self, task: EngineTask) -> bool:
        """Whether a task must have one slot, and that is busy."""
        return task.slot >= 0 and self._wanted(task).state is not SlotState.IDLE

    def _wanted(self, task: EngineTask) -> Slot:
        return self._slots[task.slot % len(self._slots)]

    def choose(self, task: EngineTask, namespace: CacheNamespace) -> Slot | None:
        """Return the idle slot for a task, or None if no slot is idle or too few cells are free.

        The task must not be one that `awaits_slot`.
        """
        if not self._fits(task, namespace):
            return None
        if task.slot >= 0:
            return self._wanted(task)
        idle = [slot for slot in self._slots if slot.state is SlotState.IDLE]
        if not idle:
            return None
        if not self._cache.is_on:
            alike = [slot for slot in idle if slot.namespace == namespace]
            slot = most_similar(alike, task.reading, self._similarity)
            return slot or min(idle, key=lambda slot: (slot.last_used, slot.id))
        n, holders = self._cache.holders(namespace, task.reading, are_own=True)
        holding = [slot for slot in idle if slot.id in holders]
        if holding and n / len(task.reading) > self._similarity > 0:
            return min(holding, key=lambda slot: len(slot.tokens))
        return min(idle, key=lambda slot: (bool(slot.tokens), slot.last_used, slot.id))

    def clear(
        self, slot: Slot, task: EngineTask, namespace: CacheNamespace, *, is_alone: bool = False
    ) -> int:
        """Let a slot forget what a task cannot use; return how many tokens it keeps."""
        n_cached = reusable(slot.tokens, task.reading) if task.params.cache_prompt else 0
        n_cached = whole_pieces(task.media, n_cached)
        if slot.namespace != namespace or not self._cuts:
            n_cached = 0  # read with other adapters or for another tenant, or cannot be cut
        if (checkpoints := self._cache.checkpoints).is_needed:
            n_cached = checkpoints.last_cut(slot, task.reading, n_cached)
        if n_cached < len(slot.tokens):
            # The same prompt once more: its answer goes to the cells of the one before, as in
            # llama-server. Behind them the kernels of a CPU would round it otherwise.
            is_again = is_alone and n_cached == len(task.reading) - 1
            self._cache.keep(slot, n_cached, to_host=is_again)
        n_cached = self._cache.cut(slot, n_cached)
        if n_cached == 0:
            slot.n_saved = slot.group_start = 0
        slot.scales, slot.salt = namespace
        return n_cached

    def n_known(self, task: EngineTask, namespace: CacheNamespace) -> int:
        """Count the tokens that a task has to read and any sequence holds."""
        if not task.params.cache_prompt:
            return 0
        n, _ = self._cache.holders(namespace, task.reading)
        return min(n, len(task.reading) - 1)

    def _fits(self, task: EngineTask, namespace: CacheNamespace) -> bool:
        """Return whether a task's cells are free beside what the running tasks may still need."""
        busy = [slot.run for slot in self._slots if slot.run is not None]
        if not busy or not self._is_scarce:
            return True
        promised = sum(slot.n_prompt_left for slot in self._slots)
        promised += sum(reserve(run.n_left) for run in busy)
        n_predict = task.params.n_predict
        n_left = max(0, n_predict - task.n_resumed) if n_predict >= 0 else n_predict
        n_read = min(len(task.reading), self._n_ctx) - self.n_known(task, namespace)
        wanted = n_read + reserve(n_left)
        n_held = self._cache.n_cells - self._cache.n_evictable
        return n_held + promised + wanted <= self._n_cells


def most_similar(slots: Sequence[Slot], prompt: Sequence[int], similarity: float) -> Slot | None:
    """Return the slot that holds most of a prompt, or None.

    llama-server's rule (get_available_slot): the common prefix counts only above `similarity` of
    the prompt; 0 turns it off.
    """
    if not slots or not prompt:
        return None
    n, slot = max(
        ((common_prefix(slot.tokens, prompt), slot) for slot in slots), key=lambda found: found[0]
    )
    return slot if n / len(prompt) > similarity > 0 else None


def reserve(n_predict: int) -> int:
    """Return the cells to reserve for an answer; `n_predict` below 0 is no limit."""
    return min(n_predict, _RESERVE) if n_predict >= 0 else _RESERVE
