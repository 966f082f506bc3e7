"""Reads the parts of the gateway that the feed shows; changes none of them."""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.feed.changes import State
from gateway.feed.history import N_SECONDS, GatewaySecond
from gateway.feed.part import GatewayPart, Row, event_rows, request_rows
from gateway.feed.processes import process_events
from gateway.feed.sampler import PoolSampler
from gateway.feed.state import N_REQUESTS, state_of, worker_sections
from gateway.fleet.supervisor_link import SupervisorLink
from gateway.fleet.views import gateway_rows, worker_rows
from gateway.metrics.metrics import Metrics
from gateway.models.manager import ModelManager
from gateway.models.model import ManagedModel
from gateway.models.views import state_of as model_state
from gateway.pool.pool import Pool
from gateway.pool.status import NO_WORKER, ModelState
from gateway.pool.watch.activity import Activity, activity
from gateway.siblings.siblings import Siblings
from protocol.process.control import FleetReport
from protocol.version import version

NO_KEY = ""
"""Name of all clients of a server without keys, whose addresses are not shown."""
MAX_WHY = 200
"""Characters of the reason why a model is not loaded."""
SETTLED_S = 15
"""A sample that is older does not change: no quantile of a newer second has it."""


@dataclass(slots=True, kw_only=True)
class FeedSources:
    """Pool, counters, processes and models of one gateway."""

    pool: Pool
    metrics: Metrics
    supervisor: SupervisorLink
    models: ModelManager | None
    siblings: Siblings
    has_keys: bool
    sampler: PoolSampler = field(init=False)
    _about: Mapping[str, Any] = field(init=False)
    _samples: dict[str, Any] = field(default_factory=dict)
    _n_others: int = 0
    """Gateways whose seconds are in the samples."""

    def __post_init__(self) -> None:
        self.sampler = PoolSampler(self.pool, self.metrics)
        self.supervisor.on_report = self._reported
        self._about = {
            "version": version(),
            "host": os.uname().nodename,
            "started_at": round(time.time()),
            "pid": os.getpid(),
            "has_keys": self.has_keys,
        }

    def __repr__(self) -> str:
        return f"<FeedSources {self.pool!r}>"

    def _reported(self, before: FleetReport, after: FleetReport) -> None:
        for event in process_events(before, after):
            self.pool.events.note(**asdict(event))

    def part(self) -> GatewayPart:
        """Return what this gateway alone knows."""
        return self._part(activity(self.pool.dispatcher))

    def _part(self, seen: Activity) -> GatewayPart:
        pool, name = self.pool, self.siblings.name
        return GatewayPart(
            name=name,
            pid=self._about["pid"],
            slots=seen.slots,
            queue={model: self._by_key(tenants) for model, tenants in seen.queue.items()},
            events=event_rows(name, pool.events.latest()),
            requests=request_rows(name, pool.requests.latest(N_REQUESTS)),
            n_waiting=dict(pool.status.queue_depths()),
            n_moved=sum(self.metrics.moves.values()),
            n_refused=pool.status.n_quarantined(),
        )

    def _by_key(self, tenants: Mapping[str, int]) -> dict[str, int]:
        return dict(tenants) if self.has_keys else {NO_KEY: sum(tenants.values())}

    def state(
        self,
        others: Sequence[GatewayPart],
        seconds: Sequence[Mapping[int, GatewaySecond]],
        silent: Sequence[str],
    ) -> State:
        """Return the state of the whole pool, with the reports of other gateways."""
        seen = activity(self.pool.dispatcher)
        parts = [self._part(seen), *others]
        views, stats = self.pool.status.workers(), self.metrics.stats
        rates, now = self.metrics.rates, time.monotonic()
        rows = worker_rows(
            views,
            self.supervisor.report,
            {view.name: rates.rate(view.name, now) for view in views},
            self._about["host"],
        )
        latest = {view.name: stats.latest(view.name) for view in views}
        workers, load = worker_sections(rows, seen.cards, latest, parts)
        sections = {
            "pool": self._facts(parts, silent),
            "models": self._models(parts),
            "workers": workers,
            "load": load,
            "samples": self._sampled(seconds),
        }
        return state_of(sections, parts)

    def _facts(self, parts: Sequence[GatewayPart], silent: Sequence[str]) -> dict[str, Any]:
        """Return the rows about the pool as a whole."""
        health, report = self.pool.health(), self.supervisor.report
        is_well = self.models is not None and health.status in NO_WORKER
        return {
            "about": self._about,
            "has_supervisor": self.supervisor.is_open,
            "status": "ok" if is_well else health.status,
            "gateways": gateway_rows(report, self._about["pid"]),
            "seen": sorted(part.pid for part in parts),
            "silent": list(silent),
            "rollout": asdict(report.rollout),
            "n_moved": sum(part.n_moved for part in parts),
            "n_refused": sum(part.n_refused for part in parts),
        }

    def _models(self, parts: Sequence[GatewayPart]) -> dict[str, Row]:
        pool = self.pool
        cards = {card.name: card for card in pool.status.cards()}
        waiting: Counter[str] = Counter()
        for part in parts:
            waiting.update(part.n_waiting)
        rows = {
            name: {
                "state": str(pool.status.state(card.name)),
                "n_waiting": waiting[name],
                "limit": pool.dispatcher.limits.limit(card.name),
                "is_managed": False,
            }
            for name, card in cards.items()
        }
        for name in waiting.keys() - rows.keys():  # the first worker of a model loads it
            rows[name] = {"state": "loading", "n_waiting": waiting[name], "is_managed": False}
        if self.models is not None:
            for name, model in self.models.states.models.items():
                known = rows.get(name, {"n_waiting": 0})
                sleeps = known.get("state") == ModelState.SLEEPING
                rows[name] = {**known, **_managed(model, sleeps=sleeps)}
        return dict(sorted(rows.items()))

    def _sampled(self, others: Sequence[Mapping[int, GatewaySecond]]) -> dict[str, Any]:
        """Return the samples; only the newest ones are computed again."""
        history = self.sampler.history
        newest = next(reversed(self._samples), "0")
        if len(others) != self._n_others or history.newest < int(newest):
            self._samples = {}
        if str(history.newest) != newest or others:
            since = int(newest) - SETTLED_S if self._samples else 0
            fresh = self._samples | history.rows(others, since)
            oldest = history.newest - N_SECONDS
            self._samples = {key: row for key, row in fresh.items() if int(key) > oldest}
        self._n_others = len(others)
        return self._samples


def _managed(model: ManagedModel, *, sleeps: bool) -> Row:
    """Show what only a model that can be loaded and unloaded has."""
    return {
        "state": str(model_state(model, sleeps=sleeps)),
        "is_managed": True,
        "is_stopping": model.is_stopping,
        "progress": round(model.progress, 2),
        "why": model.why[:MAX_WHY],
    }
