"""Ends a worker that is stuck, and tells the watchdog of the supervisor that this one is not."""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from protocol.errors import EXIT_RESTART
from protocol.process.notify import Notifier
from worker.engine.engine import Engine
from worker.link.tasks.preparation import Preparation

logger = logging.getLogger(__name__)

_ACTION = "the worker ends at once"
_ENCODER_LIMIT_S = 600.0
"""Seconds after which the encoder of images and sounds is stuck. A CPU takes minutes for a large
image, and other tasks go on meanwhile."""
_STOOD_STILL_S = 2.0
"""Seconds between two checks after which this process may have been paused: a container may be, and
time goes on."""
_TURN_S = 1.0
"""Longest time between two turns of the main loop: half of `_STOOD_STILL_S`."""


class Watchdog:
    """Used by the main thread in each turn of its loop."""

    def __init__(self, notifier: Notifier, stall_s: float) -> None:
        """`stall_s` is how long a preparation may go on after its time limit."""
        self._notifier = notifier
        self._stall_s = stall_s
        self._next_report = 0.0
        self._checked_at = 0.0
        self._has_stood_still = False
        self._spared: dict[str, tuple[float, float]] = {}
        """The work that got its time anew last: when it began, and when that was; by its kind."""

    @property
    def turn_s(self) -> float:
        """Longest time, in seconds, until the main loop must call `check` and `feed` again."""
        interval_s = self._notifier.watchdog_interval_s
        return _TURN_S if interval_s is None else min(_TURN_S, interval_s / 2)

    def check(self, engine: Engine | None, preparation: Preparation) -> None:
        """End the process at once if the engine or a preparation is stuck."""
        now = time.monotonic()
        self._has_stood_still = now - self._checked_at > _STOOD_STILL_S
        self._checked_at = now
        if engine is not None:
            self._check_engine("engine", engine.progress.started_s, engine.progress.stall_s)
            self._check_engine("encoder", engine.encoding_since, _ENCODER_LIMIT_S)
        job = preparation.stuck(self._stall_s)
        if job is not None and not self._is_spared("preparation", job.started_s, self._stall_s):
            logger.critical(
                "preparation stuck",
                extra={"job": job.label, "limit_s": job.limit_s, "action": _ACTION},
            )
            _leave()

    def _check_engine(self, kind: str, since: float, limit_s: float) -> None:
        """End the process if one of the engine's threads has worked for too long on one thing."""
        stalled_s = self._checked_at - since
        if since and stalled_s > limit_s and not self._is_spared(kind, since, limit_s):
            logger.critical(
                "engine stuck",
                extra={
                    "kind": kind,
                    "stalled_s": stalled_s,
                    "limit_s": limit_s,
                    "action": _ACTION,
                },
            )
            _leave()

    def _is_spared(self, kind: str, since: float, limit_s: float) -> bool:
        """Whether work that began then has its time anew, once, because it may have been paused."""
        spared, at = self._spared.get(kind, (0.0, 0.0))
        if spared == since:
            return self._checked_at - at <= limit_s
        if self._has_stood_still:
            self._spared[kind] = since, self._checked_at
        return self._has_stood_still

    def feed(self, state: Callable[[], str]) -> None:
        """Report to the supervisor's watchdog twice in its interval, with the state as text.

        Sends earlier reports too that its socket had no room for.
        """
        self._notifier.flush()
        interval_s = self._notifier.watchdog_interval_s
        now = time.monotonic()
        if interval_s is not None and now >= self._next_report:
            self._next_report = now + interval_s / 2
            self._notifier.watchdog()
            self._notifier.status(state())


def _leave() -> NoReturn:
    """End without freeing anything: the stuck thread holds the library."""
    sys.stderr.flush()
    os._exit(EXIT_RESTART)
