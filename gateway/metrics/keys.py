"""Counters by API key, under a bounded number of names.

The busiest keys have a row each, all others share the row `other`. A key that gets a row starts at
zero in it; the counts of a key that loses its row are added to `other`. So the rows add up, and no
counter falls except that of a key that gets a row again.
"""

from collections import defaultdict
from collections.abc import Mapping

MAX_KEYS = 50
"""Keys with a row of their own: each costs some time series."""
OTHER, NO_KEY = "other", "none"
_LEAD = 2.0
"""A key takes the row of the least busy one once it has used this many times its tokens."""

KEY_COUNTS = ("tasks", "refused", "prompt", "cached", "predicted", "queue_s")


class KeyCounts:
    """What each key has used."""

    def __init__(self) -> None:
        self.rows: defaultdict[tuple[str, str], float] = defaultdict(float)
        """By key and what is counted, one of `KEY_COUNTS`."""
        self._shown: dict[str, float] = {}
        """Keys with a row of their own, and the tokens that they used since they have it."""
        self._hidden: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<KeyCounts shown={len(self._shown)} hidden={len(self._hidden)}>"

    def label(self, key: str) -> str:
        """Return the name under which a key is shown: its own if it has a row."""
        has_row = (key, "tasks") in self.rows or (key, "refused") in self.rows
        return (key if has_row else OTHER) if key else NO_KEY

    def refused(self, key: str) -> None:
        """Count a task that was not taken."""
        self.rows[self._place(key, 0), "refused"] += 1

    def ended(
        self, key: str, *, n_prompt: int, n_cached: int, n_predicted: int, queue_s: float
    ) -> None:
        """Count a task that has ended."""
        rows, label = self.rows, self._place(key, n_prompt - n_cached + n_predicted)
        rows[label, "tasks"] += 1
        rows[label, "prompt"] += n_prompt
        rows[label, "cached"] += n_cached
        rows[label, "predicted"] += n_predicted
        rows[label, "queue_s"] += queue_s

    def _place(self, key: str, n_tokens: float) -> str:
        """Note what a key uses and return its row."""
        if not key:
            return NO_KEY
        if key in self._shown:
            self._shown[key] += n_tokens
            return key
        if len(self._shown) < MAX_KEYS:
            self._shown[key] = n_tokens
            return key
        used = self._hidden[key] = self._hidden.get(key, 0) + n_tokens
        least = min(self._shown, key=lambda name: self._shown[name])
        if used <= _LEAD * self._shown[least]:
            return OTHER
        self._replace(least, key)
        return key

    def _replace(self, old: str, new: str) -> None:
        for what in KEY_COUNTS:
            self.rows[OTHER, what] += self.rows.pop((old, what), 0)
        del self._shown[old]
        self._shown[new] = self._hidden.pop(new)
        # Counts restart for all, so that a tenant that was busy a month ago loses its row.
        self._shown = dict.fromkeys(self._shown, 0.0) | {new: self._shown[new]}
        self._hidden.clear()


def keep_busiest(rows: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Return the rows of the `MAX_KEYS` busiest keys; those of all others are added to `other`."""
    used: defaultdict[str, float] = defaultdict(float)
    for (key, what), n in rows.items():
        used[key] += n if what in ("prompt", "predicted") else 0
    kept = {*sorted(used, key=lambda key: -used[key])[:MAX_KEYS], NO_KEY}
    result: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (key, what), n in rows.items():
        result[key if key in kept else OTHER, what] += n
    return dict(result)
