"""Adds up the counters of all gateways of a host, so that one scrape gives the host's figures.

What workers report is not added: every gateway hears all of it. What an ended gateway has counted
stays in the sums; otherwise a counter would fall, which a scraper takes for a restart from zero.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.metrics.counters import ConnectionCounts, Histogram, ModelLatencies
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView, WorkerView

Counted = Mapping[str, Any]
"""Counters of one gateway as JSON: rows of [name, labels, value]; histograms as their parts."""

_COUNTERS = (
    *("tasks", "losses", "routes", "expected", "found", "faults"),
    *("event_streams", "http_statuses", "moves", "reread"),
)
_LATENCIES = ("ttft", "itl", "queue", "gap")


def snapshot(metrics: Metrics, depths: Mapping[str, int]) -> dict[str, Any]:
    """Write the counters of this gateway."""
    histograms = [["http", label, one.parts()] for label, one in metrics.http.items()]
    for model, latencies in metrics.latencies.items():
        histograms += [[name, model, getattr(latencies, name).parts()] for name in _LATENCIES]
    histograms.append(["loop", "", metrics.loop_lag.histogram.parts()])
    connections = metrics.connections
    return {
        "counters": [
            *(
                [name, list(labels), n]
                for name in _COUNTERS
                for labels, n in getattr(metrics, name).items()
            ),
            ["n_late", [], metrics.n_late],
            ["n_closed_idle", [], connections.n_closed_idle],
            ["n_refused", [], connections.n_refused],
        ],
        "histograms": histograms,
        "n_open": connections.n_open,
        "lag_max_s": metrics.loop_lag.longest_s,
        "depths": dict(depths),
    }


def added(snapshots: Iterable[Counted]) -> dict[str, Any]:
    """Add the counters of ended gateways; what was only true while they ran is left out."""
    counters: Counter[tuple[str, tuple[str, ...]]] = Counter()
    histograms: dict[tuple[str, str], list[float]] = {}
    for one in snapshots:
        for name, labels, n in one.get("counters", ()):
            counters[name, tuple(labels)] += n
        for name, label, parts in one.get("histograms", ()):
            before = histograms.setdefault((name, label), [0] * len(parts))
            if len(before) == len(parts):  # else of another release
                histograms[name, label] = [a + b for a, b in zip(before, parts, strict=True)]
    return {
        "counters": [[name, list(labels), n] for (name, labels), n in counters.items()],
        "histograms": [[name, label, parts] for (name, label), parts in histograms.items()],
    }


def with_others(metrics: Metrics, others: Iterable[Counted]) -> Metrics:
    """Return the metrics of this gateway with the counters of the others added to them."""
    others = list(others)
    result = copy.copy(metrics)
    total = added(others)
    counts: dict[str, Counter[tuple[str, ...]]] = {}
    for name, labels, n in total["counters"]:
        counts.setdefault(name, Counter())[tuple(labels)] = n
    for name in _COUNTERS:
        setattr(result, name, getattr(metrics, name) + counts.get(name, Counter()))
    result.n_late = metrics.n_late + counts.get("n_late", Counter())[()]
    own = metrics.connections
    result.connections = ConnectionCounts(
        n_open=own.n_open + sum(one.get("n_open", 0) for one in others),
        n_closed_idle=own.n_closed_idle + counts.get("n_closed_idle", Counter())[()],
        n_refused=own.n_refused + counts.get("n_refused", Counter())[()],
    )
    result.loop_lag = copy.copy(metrics.loop_lag)
    lags = (one.get("lag_max_s", 0.0) for one in others)
    result.loop_lag.longest_s = max(metrics.loop_lag.longest_s, *lags, 0.0)
    _add_histograms(result, metrics, total["histograms"])
    return result


def _add_histograms(result: Metrics, own: Metrics, rows: Iterable[tuple[str, str, Any]]) -> None:
    result.http = {label: copy.deepcopy(one) for label, one in own.http.items()}
    result.latencies = {model: copy.deepcopy(one) for model, one in own.latencies.items()}
    result.loop_lag.histogram = copy.deepcopy(own.loop_lag.histogram)
    for name, label, parts in rows:
        if name == "loop":
            result.loop_lag.histogram.add(parts)
        elif name == "http":
            result.http.setdefault(label, Metrics.http_histogram()).add(parts)
        else:
            found: Histogram = getattr(result.latencies.setdefault(label, ModelLatencies()), name)
            found.add(parts)


class HostView:
    """The pool of this gateway, with the tasks that wait at the others."""

    def __init__(self, pool: PoolView, others: Iterable[Counted]) -> None:
        self._pool = pool
        self._others = list(others)

    def workers(self) -> tuple[WorkerView, ...]:
        """List the connected workers."""
        return self._pool.workers()

    def queue_depths(self) -> Mapping[str, int]:
        """Count the waiting tasks of each model."""
        depths = Counter(self._pool.queue_depths())
        for one in self._others:
            depths.update(one.get("depths", {}))
        return depths

    def n_quarantined(self) -> int:
        """Count the requests that this gateway refuses because workers died with them."""
        return self._pool.n_quarantined()
