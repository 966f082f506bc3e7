"""The text of `GET /metrics`: llama-server's lines unchanged, and the pool's own.

It owns names, texts and counters. Current values (workers, slots, queue) are read from the pool at
each scrape through `PoolView`.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.metrics.counters import ConnectionCounts, Histogram, ModelLatencies, StatsBook
from gateway.metrics.families import histograms, labelled
from gateway.metrics.llama_server import Snapshot, legacy_text
from gateway.metrics.loop_lag import LoopLag
from gateway.metrics.rates import TokenRates
from gateway.metrics.recovery import recovery_families
from protocol.wire.facts import Stats

logger = logging.getLogger(__name__)

_HTTP_S = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Current state of one connected worker."""

    name: str
    model: str
    state: str
    n_slots: int
    n_busy: int
    n_waiting: int = 0
    """Tasks in the worker that have no slot yet."""
    is_ejected: bool = False
    """Whether it gets one probe at a time, because its tasks fail or are slow."""


class PoolView(Protocol):
    """What the metrics read from the pool."""

    def workers(self) -> tuple[WorkerView, ...]:
        """List the connected workers."""

    def queue_depths(self) -> Mapping[str, int]:
        """Count the waiting tasks of each model."""

    def n_quarantined(self) -> int:
        """Count the requests that are refused because workers died with them."""


class Metrics:
    """All counters of one gateway; nothing here is global."""

    def __init__(self) -> None:
        self.stats = StatsBook()
        self.rates = TokenRates()
        self.tasks: Counter[tuple[str, str]] = Counter()
        self.losses: Counter[tuple[str, str]] = Counter()
        self.moves: Counter[tuple[str, str, str]] = Counter()
        """By model, cause, and whether a part of the answer was there (`begun`, else `none`)."""
        self.reread: Counter[tuple[str]] = Counter()
        self.routes: Counter[tuple[str, str]] = Counter()
        self.expected: Counter[tuple[str]] = Counter()
        self.found: Counter[tuple[str]] = Counter()
        self.loop_lag = LoopLag()
        self.faults: Counter[tuple[str]] = Counter()
        self.handshakes: Counter[tuple[str]] = Counter()
        self.n_late = 0
        self.event_streams: Counter[tuple[str]] = Counter()
        self.connections = ConnectionCounts()
        self.latencies: dict[str, ModelLatencies] = {}
        self.http: dict[str, Histogram] = {}
        self.link_lag: dict[str, Histogram] = {}
        self.http_statuses: Counter[tuple[str, str]] = Counter()
        self._scraped: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Metrics tasks={sum(self.tasks.values())} late={self.n_late} {self.stats!r}>"

    def of_model(self, model: str) -> ModelLatencies:
        """Return the histograms of a model."""
        return self.latencies.setdefault(model, ModelLatencies())

    def task_ended(self, model: str, finish: str) -> None:
        """Count a task by the way it ended."""
        self.tasks[model, finish] += 1

    def routed(self, model: str, branch: str) -> None:
        """Count an assignment by its reason."""
        self.routes[model, branch] += 1

    def reused(self, model: str, *, expected: int, found: int) -> None:
        """Count the prompt tokens that were expected in a cache, and those that were found."""
        self.expected[(model,)] += expected
        self.found[(model,)] += found

    def moved(self, model: str, cause: str | None, *, has_begun: bool) -> None:
        """Count a task that left its worker for another one."""
        self.moves[model, cause or "", "begun" if has_begun else "none"] += 1

    def read_again(self, model: str, n_tokens: int) -> None:
        """Count the tokens that were read again because a task went on elsewhere."""
        self.reread[(model,)] += n_tokens

    def worker_lost(self, worker: str, model: str) -> None:
        """Count a lost connection of a worker."""
        self.losses[worker, model] += 1

    def dropped(self, n: int) -> None:
        """Count messages that belong to no current task."""
        self.n_late += n

    def handshake_failed(self, kind: str) -> None:
        """Count a connection over tcp that ended before it had proved who it is."""
        self.handshakes[(kind,)] += 1

    def event_stream(self, *, is_direct: bool) -> None:
        """Count a streamed response by what writes its events."""
        self.event_streams["direct" if is_direct else "server",] += 1

    def fault(self, place: str) -> None:
        """Count an unexpected exception that was handled."""
        self.faults[(place,)] += 1

    def beat(self, worker: str, model: str, epoch: int, stats: Stats) -> None:
        """Take the counters of a heartbeat."""
        self.stats.beat(worker, model, epoch, stats)
        self.rates.note(worker, epoch, stats.n_predicted, time.monotonic())
        lag = self.link_lag.get(worker)
        if lag is None:
            lag = self.link_lag[worker] = Histogram(_LAG_S)
        lag.observe(stats.link_lag_s)

    def http_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request under the pattern of its route."""
        self.http_statuses[route, f"{status // 100}xx"] += 1
        histogram = self.http.get(route)
        if histogram is None:
            histogram = self.http[route] = self.http_histogram()
        histogram.observe(seconds)

    @staticmethod
    def http_histogram() -> Histogram:
        """Make the histogram of one route."""
        return Histogram(_HTTP_S)

    def render(self, pool_view: PoolView) -> bytes:
        """Write the whole text; the throughput gauges cover the time since the last call."""
        registry = CollectorRegistry()
        registry.register(_Own(self, pool_view))
        totals = self.stats.totals()
        now = Snapshot(
            totals=totals,
            window={name: value - self._scraped.get(name, 0) for name, value in totals.items()},
            latest=[self.stats.latest(worker.name) for worker in pool_view.workers()],
            n_processing=sum(worker.n_busy for worker in pool_view.workers()),
            n_deferred=sum(pool_view.queue_depths().values()),
            accepted_at=self.stats.accepted_at(),
        )
        self._scraped.update(totals)
        return legacy_text(now).encode() + generate_latest(registry)


_PER_WORKER = (
    ("llamapool_engine_step_seconds", "Time in engine steps.", "step_s"),
    ("llamapool_engine_decode_seconds", "Time in llama_decode.", "decode_s"),
    ("llamapool_engine_sample_seconds", "Time in sampling.", "sample_s"),
    ("llamapool_engine_gap_seconds", "Time between the decode calls of steps.", "gap_s"),
    ("llamapool_prompt_tokens", "Prompt tokens processed, cached ones excluded.", "n_prompt"),
    ("llamapool_cached_tokens", "Prompt tokens reused from the cache.", "n_cached"),
    ("llamapool_predicted_tokens", "Tokens generated.", "n_predicted"),
    ("llamapool_evicted_prompts", "Texts that left the prefix cache.", "n_evicted"),
    ("llamapool_restored_tokens", "Prompt tokens brought back from the host's RAM.", "n_restored"),
    ("llamapool_preempted_tasks", "Tasks that gave their cells up for a while.", "n_preempted"),
    ("llamapool_worker_faults", "Tasks that ended by a fault of their worker.", "n_faults"),
)

_LATEST = (
    ("llamapool_cache_used_cells", "Cells of the context in use.", "n_kv_used"),
    ("llamapool_cache_cells", "Cells of the context.", "n_kv"),
    ("llamapool_cache_branches", "Prompts kept beside those of the slots.", "n_branches"),
    ("llamapool_cache_host_bytes", "Size of the prompts in the host's RAM.", "n_host_bytes"),
)


class _Own(Collector):
    """The pool's own metric families at one scrape."""

    def __init__(self, metrics: Metrics, view: PoolView) -> None:
        self._metrics = metrics
        self._view = view

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registry does not collect at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Write every part; one that raises is left out, logged and counted."""
        parts = (
            *(self._latencies, self._connections, self._routes, self._gauges, self._loop),
            *(self._of_workers, self._counters, self._recovery),
        )
        for part in parts:
            try:
                yield from part()
            except Exception:
                logger.exception(
                    "metrics incomplete",
                    extra={"place": part.__name__, "action": "the page leaves this part out"},
                )
                self._metrics.fault("metrics")

    def _of_workers(self) -> Iterator[Metric]:
        for name, text, source in _PER_WORKER:
            family = CounterMetricFamily(name, text, labels=("worker", "model"))
            for key, row in self._metrics.stats.rows().items():
                family.add_metric(key, row.sums[source])
            yield family
        for name, text, source in _LATEST:
            gauge = GaugeMetricFamily(name, text, labels=("worker", "model"))
            for worker in self._view.workers():
                latest = self._metrics.stats.latest(worker.name)
                gauge.add_metric((worker.name, worker.model), getattr(latest, source))
            yield gauge

    def _latencies(self) -> Iterator[Metric]:
        models = self._metrics.latencies
        yield histograms(
            "llamapool_time_to_first_token_seconds",
            "From the submission of a task to its first token.",
            "model",
            {name: one.ttft for name, one in models.items()},
        )
        yield histograms(
            "llamapool_inter_token_latency_seconds",
            "Between two tokens of a task, as they reach the gateway.",
            "model",
            {name: one.itl for name, one in models.items()},
        )
        yield histograms(
            "llamapool_queue_seconds",
            "From the submission of a task to its assignment.",
            "model",
            {name: one.queue for name, one in models.items()},
        )
        yield histograms(
            "llamapool_continued_gap_seconds",
            "Between two tokens of a task that went on at another worker in between.",
            "model",
            {name: one.gap for name, one in models.items()},
        )
        yield histograms(
            "llamapool_http_request_seconds",
            "From the head of a request to the end of its answer.",
            "route",
            self._metrics.http,
        )
        yield histograms(
            "llamapool_link_loop_lag_seconds",
            "The longest wait for a worker's main thread in each heartbeat.",
            "worker",
            self._metrics.link_lag,
        )

    def _loop(self) -> Iterator[Metric]:
        lag = self._metrics.loop_lag
        yield HistogramMetricFamily(
            "llamapool_gateway_loop_lag_seconds",
            "By how much timers of the gateway's loop are late.",
            buckets=lag.histogram.buckets(),
            sum_value=lag.histogram.total_s,
        )
        yield GaugeMetricFamily(
            "llamapool_gateway_loop_lag_max_seconds",
            "The longest of them since the start.",
            value=lag.longest_s,
        )

    def _counters(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield labelled(
            CounterMetricFamily(
                "llamapool_tasks", "Tasks by the way they ended.", labels=("model", "finish")
            ),
            metrics.tasks.items(),
        )
        yield labelled(
            CounterMetricFamily(
                "llamapool_worker_losses",
                "Connections of workers that broke.",
                labels=("worker", "model"),
            ),
            metrics.losses.items(),
        )
        yield labelled(
            CounterMetricFamily(
                "llamapool_http_requests",
                "Requests by route and class of status.",
                labels=("route", "status"),
            ),
            metrics.http_statuses.items(),
        )
        yield labelled(
            CounterMetricFamily(
                "llamapool_gateway_faults",
                "Exceptions that ended one task or request and nothing else.",
                labels=("place",),
            ),
            metrics.faults.items(),
        )
        yield CounterMetricFamily(
            "llamapool_late_messages",
            "Messages of attempts or workers that had been given up.",
            value=metrics.n_late,
        )

    def _recovery(self) -> Iterator[Metric]:
        workers = [(one.model, one.is_ejected) for one in self._view.workers()]
        moves, reread = self._metrics.moves, self._metrics.reread
        yield from recovery_families(moves, reread, workers, self._view.n_quarantined())

    def _connections(self) -> Iterator[Metric]:
        counts = self._metrics.connections
        yield labelled(
            CounterMetricFamily(
                "llamapool_failed_handshakes",
                "Connections over tcp that ended before they had proved who they are.",
                labels=("kind",),
            ),
            self._metrics.handshakes.items(),
        )
        yield GaugeMetricFamily(
            "llamapool_http_connections", "Open connections of clients.", value=counts.n_open
        )
        family = CounterMetricFamily(
            "llamapool_http_connections_refused",
            "Connections beyond the limit: idle ones that were closed, new ones that were refused.",
            labels=("which",),
        )
        rows = {("idle",): counts.n_closed_idle, ("new",): counts.n_refused}
        yield labelled(family, rows.items())
        yield labelled(
            CounterMetricFamily(
                "llamapool_event_streams",
                "Streamed responses, by what writes their events.",
                labels=("way",),
            ),
            self._metrics.event_streams.items(),
        )

    def _routes(self) -> Iterator[Metric]:
        metrics = self._metrics
        rows: tuple[tuple[str, str, str, Counter[Any]], ...] = (
            ("routed_tasks", "Assignments by what decided them.", "branch", metrics.routes),
            ("route_expected_cached_tokens", "Tokens expected in a cache.", "", metrics.expected),
            ("route_cached_tokens", "Tokens found there, of the same tasks.", "", metrics.found),
        )
        for name, text, label, counts in rows:
            labels = ("model", label) if label else ("model",)
            family = CounterMetricFamily(f"llamapool_{name}", text, labels=labels)
            yield labelled(family, counts.items())

    def _gauges(self) -> Iterator[Metric]:
        workers: Counter[tuple[str, ...]] = Counter()
        slots: Counter[tuple[str, ...]] = Counter()
        for worker in self._view.workers():
            workers[worker.model, worker.state] += 1
            slots[worker.model, "processing"] += worker.n_busy
            slots[worker.model, "idle"] += worker.n_slots - worker.n_busy
        depths = {(model,): n for model, n in self._view.queue_depths().items()}
        yield labelled(
            GaugeMetricFamily("llamapool_workers", "Connected workers.", labels=("model", "state")),
            workers.items(),
        )
        yield labelled(
            GaugeMetricFamily("llamapool_slots", "Slots.", labels=("model", "state")), slots.items()
        )
        yield labelled(
            GaugeMetricFamily("llamapool_queue_tasks", "Tasks that wait.", labels=("model",)),
            depths.items(),
        )
