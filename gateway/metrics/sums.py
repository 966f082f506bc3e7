"""Adds up the counters of all gateways of a host, so that one scrape gives the host's figures.

The reports of workers are not added: every gateway receives all of them, so the larger one counts.
The counters of an ended gateway stay in the sums; otherwise a counter would fall, which a scraper
takes for a restart from zero.
"""

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gateway.metrics.counters import (
    BOUNDS,
    HTTP_S,
    LAG_S,
    ConnectionCounts,
    Histogram,
    ModelLatencies,
)
from gateway.metrics.keys import KeyCounts, keep_busiest
from gateway.metrics.metrics import Metrics
from gateway.metrics.process_usage import ProcessUsage
from gateway.metrics.stats_book import StatsBook
from gateway.metrics.view import PoolView, WorkerView

Counted = Mapping[str, Any]
"""Counters of one gateway as JSON: rows of [name, labels, value]; histograms as their parts."""

_KEYS, _CPU = "keys", "cpu_s"


def snapshot(metrics: Metrics, view: PoolView) -> dict[str, Any]:
    """Write the counters of this gateway."""
    metrics.process = ProcessUsage.now()
    histograms = [["http", label, histogram.parts()] for label, histogram in metrics.http.items()]
    for model, latencies in metrics.latencies.items():
        histograms += [[name, model, getattr(latencies, name).parts()] for name in BOUNDS]
    histograms.append(["loop", "", metrics.loop_lag.histogram.parts()])
    histograms += [["link", "\n".join(key), lag.parts()] for key, lag in metrics.link_lag.items()]
    return {
        "counters": _counters(metrics),
        "histograms": histograms,
        "workers": metrics.stats.as_rows(),
        "n_open": metrics.connections.n_open,
        "kept": list(metrics.kept()),
        "lag_max_s": metrics.loop_lag.longest_s,
        "resident_bytes": metrics.process.resident_bytes,
        "depths": dict(view.queue_depths()),
        "n_quarantined": view.n_quarantined(),
        "ejected": [worker.name for worker in view.workers() if worker.is_ejected],
        "tasks_of_keys": {key: list(both) for key, both in view.tasks_of_keys().items()},
    }


def _counters(metrics: Metrics) -> list[list[Any]]:
    connections = metrics.connections
    return [
        *(
            [name, list(labels), n]
            for name, counter in metrics.counters().items()
            for labels, n in counter.items()
        ),
        *([_KEYS, list(labels), n] for labels, n in metrics.keys.rows.items()),
        ["n_late", [], metrics.n_late],
        ["n_closed_idle", [], connections.n_closed_idle],
        ["n_refused", [], connections.n_refused],
        [_CPU, [], metrics.process.cpu_s],
    ]


def sum_ended(snapshots: Iterable[Counted]) -> dict[str, Any]:
    """Return the counters of several gateways that have ended as one snapshot."""
    total, book = sum_snapshots(snapshots), StatsBook()
    book.take_over(total["workers"])
    rows = {tuple(labels): n for name, labels, n in total["counters"] if name == _KEYS}
    others = [row for row in total["counters"] if row[0] != _KEYS]
    keys = [[_KEYS, list(labels), n] for labels, n in keep_busiest(rows).items()]
    return total | {"workers": book.as_rows(), "counters": others + keys}


def sum_snapshots(snapshots: Iterable[Counted]) -> dict[str, Any]:
    """Add counters; values that hold only while a gateway runs are left out."""
    counters: Counter[tuple[str, tuple[str, ...]]] = Counter()
    histograms: dict[tuple[str, str], list[float]] = {}
    workers: list[Any] = []
    for saved in snapshots:
        for name, labels, n in saved.get("counters", ()):
            counters[name, tuple(labels)] += n
        for name, label, parts in saved.get("histograms", ()):
            before = histograms.setdefault((name, label), [0] * len(parts))
            if len(before) == len(parts):  # else of another release
                histograms[name, label] = [a + b for a, b in zip(before, parts, strict=True)]
        workers += saved.get("workers", ())
    return {
        "counters": [[name, list(labels), n] for (name, labels), n in counters.items()],
        "histograms": [[name, label, parts] for (name, label), parts in histograms.items()],
        "workers": workers,
    }


def with_others(metrics: Metrics, others: Iterable[Counted]) -> Metrics:
    """Return the metrics of this gateway with the counters of the others added to them."""
    others = list(others)
    result = copy.copy(metrics)
    total = sum_snapshots(others)
    metrics.stats.take_over(total["workers"])
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for name, labels, n in total["counters"]:
        counts[name][tuple(labels)] = n
    for name, counter in metrics.counters().items():
        setattr(result, name, counter + counts[name])
    result.n_late = metrics.n_late + counts["n_late"][()]
    own = metrics.connections
    result.connections = ConnectionCounts(
        n_open=own.n_open + sum(other.get("n_open", 0) for other in others),
        n_closed_idle=own.n_closed_idle + counts["n_closed_idle"][()],
        n_refused=own.n_refused + counts["n_refused"][()],
    )
    kept = [metrics.kept(), *(other.get("kept", (0, 0)) for other in others)]
    result.kept = lambda: (sum(n for n, _ in kept), sum(n_bytes for _, n_bytes in kept))
    result.keys = _keys(metrics.keys, counts[_KEYS])
    result.process = ProcessUsage(
        metrics.process.cpu_s + counts[_CPU][()],
        metrics.process.resident_bytes + sum(other.get("resident_bytes", 0) for other in others),
    )
    result.loop_lag = copy.copy(metrics.loop_lag)
    lags = (other.get("lag_max_s", 0.0) for other in others)
    result.loop_lag.longest_s = max(metrics.loop_lag.longest_s, *lags, 0.0)
    _add_histograms(result, metrics, total["histograms"])
    return result


def _keys(own: KeyCounts, others: Mapping[Any, float]) -> KeyCounts:
    """Add the rows of keys; each gateway has at most `MAX_KEYS` and `other`."""
    result = copy.copy(own)
    result.rows = own.rows.copy()
    for (key, what), n in others.items():
        result.rows[key, what] += n
    return result


def _add_histograms(result: Metrics, own: Metrics, rows: Iterable[tuple[str, str, Any]]) -> None:
    result.http = {label: copy.deepcopy(histogram) for label, histogram in own.http.items()}
    result.latencies = {model: copy.deepcopy(latency) for model, latency in own.latencies.items()}
    result.loop_lag.histogram = copy.deepcopy(own.loop_lag.histogram)
    result.link_lag = {key: copy.deepcopy(histogram) for key, histogram in own.link_lag.items()}
    for name, label, parts in rows:
        if name == "loop":
            result.loop_lag.histogram.add(parts)
        elif name == "link":
            worker, _, model = label.partition("\n")
            result.link_lag.setdefault((worker, model), Histogram(LAG_S)).add(parts)
        elif name == "http":
            result.http.setdefault(label, Histogram(HTTP_S)).add(parts)
        elif name in BOUNDS:  # else of another release
            found: Histogram = getattr(result.latencies.setdefault(label, ModelLatencies()), name)
            found.add(parts)


class HostView:
    """The pool of this gateway, with the tasks that wait at the others."""

    def __init__(self, pool: PoolView, others: Iterable[Counted]) -> None:
        self._pool = pool
        self._others = list(others)

    def workers(self) -> tuple[WorkerView, ...]:
        """List the connected workers; one that any gateway has ejected counts as that."""
        ejected = {name for other in self._others for name in other.get("ejected", ())}
        return tuple(
            replace(worker, is_ejected=worker.is_ejected or worker.name in ejected)
            for worker in self._pool.workers()
        )

    def queue_depths(self) -> Mapping[str, int]:
        """Count the waiting tasks of each model."""
        depths = Counter(self._pool.queue_depths())
        for other in self._others:
            depths.update(other.get("depths", {}))
        return depths

    def n_quarantined(self) -> int:
        """Count the requests that a gateway refuses because workers died with them."""
        others = (int(other.get("n_quarantined", 0)) for other in self._others)
        return max(self._pool.n_quarantined(), *others, 0)

    def tasks_of_keys(self) -> Mapping[str, tuple[int, int]]:
        """Count the waiting and the running tasks of each API key."""
        totals = dict(self._pool.tasks_of_keys())
        for other in self._others:
            for key, (n_waiting, n_running) in other.get("tasks_of_keys", {}).items():
                before = totals.get(key, (0, 0))
                totals[key] = before[0] + n_waiting, before[1] + n_running
        return totals
