"""Takes a sample of the pool each second, and notes the events that only a comparison shows.

It runs also without readers of the feed, so that a later one gets the last minutes: with 256
workers a sample takes half a millisecond.
"""

import asyncio
import time
from collections.abc import Iterable

from gateway.feed.history import RecentMinutes, Totals
from gateway.metrics.counters import ModelLatencies
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import WorkerView
from gateway.pool.pool import Pool
from gateway.pool.watch.events import EventKind

_ASLEEP = "sleeping"

_BOUNDS_S = tuple(bound for bound, _ in ModelLatencies().ttft.cumulative())


class PoolSampler:
    """Owns the history."""

    def __init__(self, pool: Pool, metrics: Metrics) -> None:
        self.history = RecentMinutes(_BOUNDS_S)
        self._pool = pool
        self._metrics = metrics
        self._counted: dict[tuple[str, str], tuple[float, float, float]] = {}
        """What was counted of each worker and model in the last sample."""
        self._sums = [0.0, 0.0, 0.0]
        self._workers: dict[str, WorkerView] = {}
        self._refused: frozenset[str] = frozenset()
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin; call this on the loop."""
        loop = asyncio.get_running_loop()
        # Scheduled first: a fault in a sample must not stop the clock.
        self._timer = loop.call_later(1.0 - time.time() % 1.0 + 0.01, self.open)
        self.take(int(time.time()))

    def close(self) -> None:
        """Stop; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self, second: int) -> None:
        """Take one sample."""
        views = self._pool.status.workers()
        self._compare(views)
        self._count(views)
        latencies = [latency.ttft.parts()[:-1] for latency in self._metrics.latencies.values()]
        self.history.add(
            second,
            Totals(
                n_predicted=self._sums[0],
                n_prompt=self._sums[1],
                n_cached=self._sums[2],
                n_busy=sum(view.n_busy for view in views),
                n_slots=sum(view.n_slots for view in views),
            ),
            n_waiting=sum(self._pool.status.queue_depths().values()),
            n_moved=sum(self._metrics.moves.values()),
            ttft=[sum(column) for column in zip(*latencies, strict=True)],
        )

    def _count(self, views: Iterable[WorkerView]) -> None:
        """Add up what the workers have counted since the last sample.

        The first report of a worker adds nothing: it counts from the worker's own start.
        """
        known, self._counted = self._counted, {}
        for view in views:
            key, stats = (view.name, view.model), self._metrics.stats.latest(view.name)
            now = (stats.n_predicted, stats.n_prompt, stats.n_cached)
            before = known.get(key, now)
            self._counted[key] = now
            for i, (new, old) in enumerate(zip(now, before, strict=True)):
                self._sums[i] += new - old if new >= old else new  # else it was started anew

    def _compare(self, views: Iterable[WorkerView]) -> None:
        events = self._pool.events
        workers = {view.name: view for view in views}
        for name, worker in workers.items():
            old = self._workers.get(name, worker)
            if worker.is_ejected != old.is_ejected:
                kind = EventKind.EJECTED if worker.is_ejected else EventKind.LET_IN
                events.note(kind, name=name, model=worker.model)
            if (worker.state == _ASLEEP) != (old.state == _ASLEEP):
                kind = EventKind.ASLEEP if worker.state == _ASLEEP else EventKind.AWAKE
                events.note(kind, name=name, model=worker.model)
        self._workers = workers
        refused = {view.fingerprint: view for view in self._pool.status.quarantined()}
        for fingerprint in refused.keys() - self._refused:
            n_deaths = refused[fingerprint].n_deaths
            why = f"{n_deaths} workers died with it; refused for an hour"
            events.note(EventKind.REFUSED, name=fingerprint[:12], why=why)
        self._refused = frozenset(refused)
