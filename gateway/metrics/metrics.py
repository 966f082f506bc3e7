"""The counters of one gateway; `gateway/metrics/page.py` writes them as text."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from gateway.metrics.counters import HTTP_S, LAG_S, ConnectionCounts, Histogram, ModelLatencies
from gateway.metrics.ended_task import EndedTask
from gateway.metrics.keys import KeyCounts
from gateway.metrics.loop_lag import LoopLag
from gateway.metrics.process_usage import ProcessUsage
from gateway.metrics.rates import TokenRates
from gateway.metrics.stats_book import StatsBook
from gateway.metrics.view import WorkerView
from protocol.wire.facts import Stats


class Metrics:
    """All counters of one gateway; nothing here is global."""

    def __init__(self) -> None:
        self.stats = StatsBook()
        self.rates = TokenRates()
        self.tasks: Counter[tuple[str, str]] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        """Tasks that were turned away, by model and `ErrorCode`."""
        self.keys = KeyCounts()
        self.losses: Counter[tuple[str, str]] = Counter()
        self.moves: Counter[tuple[str, str, str]] = Counter()
        """By model, cause, and whether a part of the answer was there (`begun`, else `none`)."""
        self.reread: Counter[tuple[str]] = Counter()
        self.routes: Counter[tuple[str, str]] = Counter()
        self.expected: Counter[tuple[str]] = Counter()
        self.found: Counter[tuple[str]] = Counter()
        self.loop_lag = LoopLag()
        self.process = ProcessUsage()
        self.faults: Counter[tuple[str]] = Counter()
        self.handshakes: Counter[tuple[str]] = Counter()
        self.n_late = 0
        self.event_streams: Counter[tuple[str]] = Counter()
        self.connections = ConnectionCounts()
        self.kept: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Counts the streams that are kept to be read again, and their bytes."""
        self.away: Callable[[], Iterable[WorkerView]] = lambda: ()
        """Lists the workers of this host's supervisor that are not connected."""
        self.n_gateway_restarts: Callable[[], int | None] = lambda: 0
        """Counts how often the gateways of this host's supervisor died and were started again; None
        until that has told."""
        self.certificate_expires_at: float | None = None
        """Seconds since 1970; None without a certificate."""
        self.latencies: dict[str, ModelLatencies] = {}
        self.http: dict[str, Histogram] = {}
        self.link_lag: dict[tuple[str, str], Histogram] = {}
        """By worker and model: what each gateway hears, so the sums have every interval of each."""
        self.http_statuses: Counter[tuple[str, str]] = Counter()
        self._scraped: dict[str, float] = {}

    def counters(self) -> dict[str, Counter[tuple[str, ...]]]:
        """Return all counters with labels, which are added up over the gateways of a host."""
        return {
            name: counter for name, counter in vars(self).items() if isinstance(counter, Counter)
        }

    def of_model(self, model: str) -> ModelLatencies:
        """Return the histograms of a model."""
        found = self.latencies.get(model)
        if found is None:  # a dozen histograms: not made at each call to be dropped again
            found = self.latencies[model] = ModelLatencies()
        return found

    def ended(self, task: EndedTask) -> None:
        """Count a task that has ended, by how, and how long each part of it took."""
        self.tasks[task.model, task.finish] += 1
        if task.was_refused:
            self.refused(task.model, task.key, task.finish)
        task.observe(self.of_model(task.model))
        self.keys.ended(
            task.key,
            n_prompt=task.n_prompt,
            n_cached=task.n_cached,
            n_predicted=task.n_predicted,
            queue_s=task.queue_s,
        )

    def refused(self, model: str, key: str, code: str) -> None:
        """Count a task that was turned away, at once or from the queue."""
        self.refusals[model, code] += 1
        self.keys.refused(key)

    def routed(self, model: str, branch: str) -> None:
        """Count an assignment by its reason."""
        self.routes[model, branch] += 1

    def reused(self, model: str, *, expected: int, found: int) -> None:
        """Count the prompt tokens that were expected in a cache, and those that were found."""
        self.expected[(model,)] += expected
        self.found[(model,)] += found

    def moved(self, model: str, cause: str | None, *, has_started: bool) -> None:
        """Count a task that left its worker for another one."""
        self.moves[model, cause or "", "begun" if has_started else "none"] += 1

    def read_again(self, model: str, n_tokens: int) -> None:
        """Count the tokens that were read again because a task moved to another worker."""
        self.reread[(model,)] += n_tokens

    def worker_lost(self, worker: str, model: str) -> None:
        """Count a lost connection of a worker."""
        n_before = self.losses.pop((worker, model), 0)
        self.losses[worker, model] = n_before + 1  # the latest stands last

    def forget_worker(self, worker: str) -> None:
        """Forget the values of a worker that is gone; its counters stay in the sums."""
        self.rates.forget(worker)
        self.stats.forget(worker)

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

    def record_stats(self, worker: str, model: str, epoch: int, stats: Stats) -> None:
        """Take the counters of a heartbeat."""
        self.stats.record(worker, model, epoch, stats)
        self.rates.note(worker, epoch, stats.n_predicted, time.monotonic())
        lag = self.link_lag.pop((worker, model), None) or Histogram(LAG_S)
        self.link_lag[worker, model] = lag
        lag.observe(stats.link_lag_s)

    def http_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request under the pattern of its route."""
        self.http_statuses[route, f"{status // 100}xx"] += 1
        histogram = self.http.get(route)
        if histogram is None:
            histogram = self.http[route] = Histogram(HTTP_S)
        histogram.observe(seconds)

    def since_last_scrape(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Return by how much the workers' sums have grown since the last call."""
        window = {name: value - self._scraped.get(name, 0) for name, value in totals.items()}
        self._scraped.update(totals)
        return window
