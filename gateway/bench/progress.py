"""A progress line on standard error; only on a terminal."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from gateway.bench.drive import BenchLoad, Driver

_WIDTH = 30
"""Characters of the bar."""
_PERIOD_S = 0.2
"""Seconds between two drawings."""


@contextlib.asynccontextmanager
async def shown(driver: Driver) -> AsyncIterator[None]:
    """Draw the line while the block runs, then wipe it away."""
    if not sys.stderr.isatty():
        yield
        return
    task = asyncio.create_task(_draw(driver))
    try:
        yield
    finally:
        task.cancel()
        _write("\r\x1b[K")


async def _draw(driver: Driver) -> None:
    before = 0
    while True:
        n_pieces = driver.n_pieces
        elapsed_s = time.perf_counter() - driver.started_s if driver.started_s else 0.0
        share = fraction(driver.load, driver.n_done, elapsed_s, driver.turns)
        _write("\r\x1b[K" + line(share, driver.n_done, (n_pieces - before) / _PERIOD_S))
        before = n_pieces
        await asyncio.sleep(_PERIOD_S)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def fraction(load: BenchLoad, n_done: int, elapsed_s: float, turns: int = 1) -> float:
    """Return the done share of a load, by requests or by time, whichever is more."""
    by_requests = n_done / (load.requests * turns) if load.requests else 0.0
    by_time = elapsed_s / load.duration_s if load.duration_s else 0.0
    return min(1.0, max(by_requests, by_time))


def line(share: float, n_done: int, pieces_per_s: float) -> str:
    """Write the line."""
    bar = "#" * int(_WIDTH * share)
    return f"[{bar:<{_WIDTH}}] {share:4.0%}  {n_done} done  {pieces_per_s:.0f} events/s"
