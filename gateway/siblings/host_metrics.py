"""The text of `GET /metrics` for all gateways of this host, whichever of them is asked.

Each gateway writes its counters to a file when it is asked and when it ends. The file outlives it:
whoever is scraped next moves the counters of an ended gateway into the file of all ended ones.
"""

import fcntl
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gateway.metrics.metrics import Metrics
from gateway.metrics.page import render
from gateway.metrics.sums import HostView, added, snapshot, with_others
from gateway.metrics.view import PoolView
from gateway.siblings.siblings import Siblings

_QUESTION = "metrics"
_ENDED = "ended"
"""Stem of the file with the counters of gateways that have ended."""


class HostMetrics:
    """The counters of this gateway, and those of its siblings where there are any."""

    def __init__(self, metrics: Metrics, pool: PoolView, siblings: Siblings) -> None:
        self._metrics = metrics
        self._pool = pool
        self._siblings = siblings
        siblings.respond(_QUESTION, self._answer)

    async def render(self) -> bytes:
        """Write the whole text."""
        folder = self._siblings.folder
        if folder is None:
            return render(self._metrics, self._pool)
        self.keep()
        answers = await self._siblings.ask(_QUESTION)
        # Of one that is there but does not answer, its last counters count.
        others = [answer or _read(folder, name) for name, answer in answers.items()]
        others.append(self._fold(folder, answers))
        view = HostView(self._pool, others)
        return render(with_others(self._metrics, others), view)

    def keep(self) -> dict[str, Any]:
        """Write the counters of this gateway to its file, and return them."""
        now = snapshot(self._metrics, self._pool.queue_depths())
        if self._siblings.folder is not None:
            _write(self._siblings.folder, self._siblings.name, now)
        return now

    async def _answer(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.keep()

    def _fold(self, folder: Path, living: Collection[str]) -> Mapping[str, Any]:
        """Move the counters of gateways that have ended into one file, and return them."""
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for milliseconds, by gateways that are scraped
            total = _read(folder, _ENDED)
            kept = {_ENDED, self._siblings.name, *living}
            gone = [path for path in folder.glob("*.json") if path.stem not in kept]
            if gone:
                total = added([total, *(_read(folder, path.stem) for path in gone)])
                _write(folder, _ENDED, total)
            for path in gone:
                path.unlink()
                path.with_suffix(".sock").unlink(missing_ok=True)
        return total


def _read(folder: Path, stem: str) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / f"{stem}.json").read_text())
    except (OSError, ValueError):  # it was never asked
        return {}
    return found if isinstance(found, dict) else {}


def _write(folder: Path, stem: str, counters: Mapping[str, Any]) -> None:
    path = folder / f"{stem}.new"
    path.write_text(json.dumps(counters))
    path.rename(folder / f"{stem}.json")
