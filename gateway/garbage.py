"""Keeps Python's garbage collector from stopping the streams.

A full collection walks over every live object: with 10,000 connections that took 200 ms and more,
in which no stream went on (`python -m benchmarks.crowd`). So what survives one is frozen: the next
one walks only over what came since, some 20,000 objects. Frozen objects that die in a cycle, such
as those of a closed connection, wait for a collection of everything. That is done when no task
runs, or when as much was frozen as was alive after the last one.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_THRESHOLDS = (700, 10, 2)
"""Python's own for the young; every second collection of the middle generation is a full one."""
_AT_ONCE = 700 * 10 * 3
"""Objects that a full collection freezes at most: Python counts them in a walk over all of them,
which takes as long as a collection."""
_LOOK_S = 60.0
_WORTH = 100_000
"""Objects that must have been frozen since, for a collection of everything while nothing runs."""
_MOST = 1_000_000
"""The same while tasks run, beside as many as were alive: about 100 MB."""


async def collect_garbage(is_idle: Callable[[], bool]) -> None:
    """Keep the collector of this process until this is cancelled; `is_idle`: a pause harms none."""
    garbage = GarbageCollection()
    garbage.open()
    try:
        while True:
            await asyncio.sleep(_LOOK_S)
            garbage.look(is_idle=is_idle())
    finally:
        garbage.close()


class GarbageCollection:
    """The collector of this process, from `open` to `close`."""

    def __init__(self) -> None:
        self._n_alive = 0
        """Objects that the last collection of everything has left."""
        self._n_new = 0
        """Objects frozen since then, at most."""
        self._before = gc.get_threshold()

    def __repr__(self) -> str:
        return f"<GarbageCollection alive={self._n_alive} new={self._n_new}>"

    def open(self) -> None:
        """Freeze what the imports have made."""
        gc.freeze()
        self._n_alive = gc.get_freeze_count()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        """Leave the collector as it was."""
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            self._n_new += _AT_ONCE

    def look(self, *, is_idle: bool) -> None:
        """Collect everything if much was frozen; much more, if somebody would notice the pause."""
        if self._n_new > (_WORTH if is_idle else _MOST + self._n_alive):
            self.collect()

    def collect(self) -> None:
        """Collect everything."""
        began = time.perf_counter()
        gc.unfreeze()
        n_freed = gc.collect()  # what is left is frozen by the callback
        gc.collect()  # of next to nothing: the next full one waits for a quarter of this one's
        self._n_alive, self._n_new = gc.get_freeze_count(), 0
        pause_s = time.perf_counter() - began
        logger.info("garbage collected", extra={"n_freed": n_freed, "pause_s": pause_s})
