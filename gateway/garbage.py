"""Keeps Python's garbage collector from stopping the streams.

A full collection walks over every live object: with 10,000 connections it took 200 ms and more, in
which no stream got a token (`python -m benchmarks.crowd`). So the survivors of each collection are
frozen, and the next one walks only over the objects made since, some 20,000. Frozen objects that
die in a cycle, such as those of a closed connection, are freed by a collection of everything. That
is done when no task runs, or when as many objects were frozen as the last one has left alive.
"""

import asyncio
import gc
import itertools
import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_THRESHOLDS = (700, 10, 2)
"""Python's own for the two young generations; every second middle collection is a full one."""
_MAX_FROZEN = 700 * 10 * 3
"""Maximum objects that a full collection freezes. It stands for the true number, because
`gc.get_freeze_count` walks over all frozen objects and takes as long as a collection."""
_INTERVAL_S = 1.0
"""Seconds between two checks whether to collect everything. Clients that send and reset 9,000
requests a second over HTTP/2 leave 10 MB of cycles a second; freeing those of a minute took 4 s."""
_IDLE_CHECKS = 60
"""Every how many checks a gateway without tasks collects fewer objects, too."""
_MIN_IDLE = 100_000
"""Minimum frozen objects for a collection of everything while no task runs."""
_MIN_BUSY = 500_000
"""The same while tasks run, added to the objects that the last one left: about 50 MB."""


async def collect_garbage(is_idle: Callable[[], bool]) -> None:
    """Manage the collector until this is cancelled; `is_idle` tells whether no task runs."""
    garbage = GarbageCollection()
    garbage.open()
    try:
        for number in itertools.count(1):
            await asyncio.sleep(_INTERVAL_S)
            garbage.check(is_idle=number % _IDLE_CHECKS == 0 and is_idle())
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
        """Freeze the objects that the imports have made, and watch full collections."""
        gc.freeze()
        self._n_alive = gc.get_freeze_count()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        """Restore the collector's settings."""
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._before)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            self._n_new += _MAX_FROZEN

    def check(self, *, is_idle: bool) -> None:
        """Collect everything if enough objects were frozen: more of them while tasks run."""
        if self._n_new > (_MIN_IDLE if is_idle else _MIN_BUSY + self._n_alive):
            self.collect()

    def collect(self) -> None:
        """Collect everything."""
        began = time.perf_counter()
        gc.unfreeze()
        n_freed = gc.collect()  # what is left is frozen by the callback
        gc.collect()  # of nearly nothing: otherwise Python delays the next full collection
        self._n_alive, self._n_new = gc.get_freeze_count(), 0
        pause_s = time.perf_counter() - began
        logger.info("garbage collected", extra={"n_freed": n_freed, "pause_s": pause_s})
