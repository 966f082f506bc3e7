"""What idle texts cost where they lie, and which of them go for that.

Every row looks at the cells in use, so an idle cell costs each row that is computed beside it. To
keep a text until that has cost as much as getting it back never costs more than twice the best that
could be done in hindsight (the ski-rental rule, Karlin et al. 1988). To get it back is to read its
own tokens again, or to copy it to the host's memory and back.
"""

from worker.engine.backend import Backend
from worker.engine.cache.cache import MIN_SHARED, Idle, PrefixCache, last_used
from worker.engine.cache.host_cache import MIN_TOKENS, HostCache
from worker.engine.slot import CacheNamespace, Slot
from worker.engine.task import EngineTask

MIN_IDLE = 100
"""Rows that an idle sequence stays in any case: its user may be about to go on."""
SHORT = 512
"""From so many cells on llama.cpp splits the attention of a lone row over its threads: with 135
million parameters on 2 cores a token takes 5 % longer, as much as with 2,000 idle cells more."""
MAX_WAY_S = 0.02
"""Longest copy of an idle text that a task is to wait for."""
MAX_WAYS_S = 0.1
"""Longest time for copies before a step that reads."""


class EvictionPolicy:
    """Counts what the cache's idle texts cost, and lets them go; the engine thread's alone."""

    def __init__(self, backend: Backend, cache: PrefixCache, host: HostCache | None) -> None:
        self._backend = backend
        self.cache = cache
        self._host = host

    @property
    def copying_s(self) -> float:
        """Time that copies to the host's memory and back have taken so far."""
        return self._host.copying_s if self._host is not None else 0.0

    @property
    def is_dear(self) -> bool:
        """Tell whether a cell costs rows that must not see it: not on a GPU."""
        return self._backend.cell_share > 0.0

    def is_quick(self, old: Idle) -> bool:
        """Tell whether an idle text takes cells from others and can soon be moved and back."""
        if self._host is None or not self.is_dear or self.cache.own(old.id) < MIN_TOKENS:
            return False
        n = len(old.tokens)
        return n * self._host.token_s < MAX_WAY_S and self._host.takes(n)

    def make_way(self, slot: Slot, task: EngineTask, space: CacheNamespace) -> None:
        """Move an idle text to the host's memory for a short task that nobody else runs beside.

        The fewer cells are in use, the faster a lone row is. One text at a time: the next such task
        moves another.
        """
        used = self.cache.holders(space, task.prompt)
        needed = used.keys if used.n >= MIN_SHARED else frozenset()
        idle = [one for one in self.cache.idle() if one is not slot and one.id not in needed]
        oldest = min(filter(self.is_quick, idle), key=last_used, default=None)
        if oldest is not None:
            self.cache.let_go(oldest)

    def clear_way(self, n_rows: int, cell_s: float) -> None:
        """Move idle texts to the host's memory before so many rows of prompts look at their cells.

        What an idle text is certain to cost counts as if it had. It has to go before the prompts
        come: llama.cpp looks at all cells up to the last one that is in use.
        """
        if self._host is None or self._backend.cell_share <= 0.0:
            return
        left_s = MAX_WAYS_S
        for old in sorted(self.cache.idle(), key=last_used):
            n_looking = self.cache.n_rows - old.used_at + n_rows
            copy_s = len(old.tokens) * self._host.token_s
            is_cheap = self._host.takes(len(old.tokens)) and copy_s <= left_s
            if is_cheap and self.cache.own(old.id) * cell_s * n_looking > 2 * copy_s:
                self.cache.let_go(old)
                left_s -= copy_s

    def expire(self, n_rows: int, cell_s: float, token_s: float) -> None:
        """Count rows that look at all cells, and let one idle sequence go that has cost too much.

        A cell costs `cell_s` a row; a token is read again in `token_s`.
        """
        cache = self.cache
        cache.n_rows += n_rows
        if cell_s <= 0.0 or token_s <= 0.0:
            return
        copying_s = 2 * self._host.token_s if self._host is not None else token_s
        n_least = max(MIN_IDLE, min(token_s, copying_s) / cell_s)  # whatever it shares with others
        for old in cache.idle():
            n_idle = cache.n_rows - old.used_at
            if n_idle < n_least:
                continue
            n_own, n_all = cache.own(old.id), len(old.tokens)
            back_s = n_own * token_s
            if self._host is None or self._host.takes(n_all):
                back_s = min(back_s, n_all * copying_s)
            if n_own * cell_s * n_idle > back_s:
                cache.let_go(old)  # one a step: a copy takes milliseconds
                return
