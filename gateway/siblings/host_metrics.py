"""The text of `GET /metrics` for all gateways of this host, whichever of them is asked.

Each gateway writes its counters to a file when it is asked and when it ends. The file outlives it:
the gateway that is scraped next moves the counters of ended ones into one file of their own.
Files are read and written in a thread, and so is the text.
"""

import asyncio
import fcntl
import itertools
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import Metric

from gateway.metrics.metrics import Metrics
from gateway.metrics.page import families, of_llama_server, write
from gateway.metrics.process_usage import ProcessUsage
from gateway.metrics.sums import HostView, snapshot, sum_ended, with_others
from gateway.metrics.view import PoolView
from gateway.siblings.siblings import Answer, Siblings

logger = logging.getLogger(__name__)

_QUESTION = "metrics"
_ENDED = "ended"
"""Stem of the file with the counters of gateways that have ended."""
_SUMMED = "summed"
"""Key in that file: gateways in the sum whose own files may still be there, after a crash."""
_TURN_S = 0.001
"""Seconds of collecting after which the loop may turn before the next family."""
_numbers = itertools.count()


class HostMetrics:
    """The counters of this gateway, and those of its siblings where there are any."""

    def __init__(self, metrics: Metrics, pool: PoolView, siblings: Siblings) -> None:
        self._metrics = metrics
        self._pool = pool
        self._siblings = siblings
        self._rendering: asyncio.Future[bytes] | None = None
        self._is_failing = False
        """Whether its counters could not be written last time."""
        siblings.respond(_QUESTION, self._answer)

    async def render(self) -> bytes:
        """Write the whole text; all who ask while it is being written get the same one."""
        rendering = self._rendering
        if rendering is None or rendering.done():
            rendering = self._rendering = asyncio.ensure_future(self._render())
        return await asyncio.shield(rendering)

    async def _render(self) -> bytes:
        folder, name = self._siblings.folder, self._siblings.name
        if folder is None:
            self._metrics.process = ProcessUsage.now()
            return await _written(self._metrics, self._pool)
        answers = await self._siblings.ask(_QUESTION)
        others = await asyncio.to_thread(_collect, folder, name, answers)
        # Of one moment: what is shown and not in the file would fall if this gateway is killed.
        now, shown = snapshot(self._metrics, self._pool), with_others(self._metrics, others)
        await asyncio.to_thread(self._kept, folder, name, now)
        return await _written(shown, HostView(self._pool, others))

    def keep(self) -> None:
        """Write the counters of this gateway to its file, at its end. Never raises."""
        if self._siblings.folder is None or not self._siblings.is_open:
            return
        now = snapshot(self._metrics, self._pool)
        self._is_failing = False  # the last failure is told in any case
        self._kept(self._siblings.folder, self._siblings.name, now)

    def _kept(self, folder: Path, name: str, now: Mapping[str, Any]) -> None:
        """Write the counters of this gateway; a full disk must not keep them from being shown."""
        try:
            _write(folder, name, now)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                logger.warning(
                    "counters not kept",
                    extra={
                        "file": folder,
                        "cause": error,
                        "action": "what this gateway counts from now on is left out at its end",
                    },
                )
            self._is_failing = True

    async def _answer(self, _: Mapping[str, Any]) -> Answer:
        now = snapshot(self._metrics, self._pool)
        if self._siblings.folder is not None:
            await asyncio.to_thread(self._kept, self._siblings.folder, self._siblings.name, now)
        return now


async def _written(metrics: Metrics, view: PoolView) -> bytes:
    """Collect the values, between which the loop may turn, and write the text in a thread."""
    first = of_llama_server(metrics, view)
    collected: list[Metric] = []
    since = time.perf_counter()
    for family in families(metrics, view):
        collected.append(family)
        if time.perf_counter() - since > _TURN_S:
            await asyncio.sleep(0)
            since = time.perf_counter()
    return await asyncio.to_thread(write, first, collected)


def _collect(folder: Path, own: str, answers: Mapping[str, Answer | None]) -> list[Answer]:
    """Return the counters of all other gateways, from its file where a gateway is silent."""
    others = [answer or _read(folder, name) for name, answer in answers.items()]
    return [*others, _fold(folder, {own, *answers})]


def _fold(folder: Path, living: Collection[str]) -> Mapping[str, Any]:
    """Move the counters of gateways that have ended into one file, and return them."""
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for milliseconds, by gateways that are scraped
            gone = _gone(folder, living)
            total, is_new = _sum(folder, gone)
            if is_new:
                _write(folder, _ENDED, {**total, _SUMMED: gone})
            for name in gone:
                (folder / f"{name}.json").unlink()
                (folder / f"{name}.sock").unlink(missing_ok=True)
            return total
    except OSError:  # the disk is full: they are moved another time
        return _sum(folder, _gone(folder, living))[0]


def _gone(folder: Path, living: Collection[str]) -> list[str]:
    """List the gateways that have ended and whose files are still there."""
    names = (path.stem for path in folder.glob("*.json"))
    return [name for name in names if name not in {_ENDED, *living}]


def _sum(folder: Path, gone: Collection[str]) -> tuple[Mapping[str, Any], bool]:
    """Return the counters of all that have ended, and whether some were not in the sum before."""
    total = _read(folder, _ENDED)
    new = [name for name in gone if name not in total.get(_SUMMED, ())]
    return (sum_ended([total, *(_read(folder, name) for name in new)]) if new else total), bool(new)


def _read(folder: Path, stem: str) -> Mapping[str, Any]:
    try:
        found = orjson.loads((folder / f"{stem}.json").read_bytes())
    except (OSError, ValueError):  # it was never asked
        return {}
    return found if isinstance(found, dict) else {}


def _write(folder: Path, stem: str, counters: Mapping[str, Any]) -> None:
    path = folder / f"{stem}.{next(_numbers)}.new"
    try:
        path.write_bytes(orjson.dumps(counters, option=orjson.OPT_NON_STR_KEYS))
        path.rename(folder / f"{stem}.json")
    except OSError:
        path.unlink(missing_ok=True)
        raise
