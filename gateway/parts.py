"""The parts behind the endpoints: made from the configuration, started and ended together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.middleware import Middleware

from gateway.feed.feed import PoolFeed
from gateway.feed.sources import FeedSources
from gateway.fleet.supervisor_link import SupervisorLink
from gateway.fleet.views import away
from gateway.metrics.metrics import Metrics
from gateway.models.manager import ModelManager
from gateway.pool.pool import Pool
from gateway.pool.workers.slot_map import ExpectedWorker
from gateway.replay.keeping import StreamKeeper
from gateway.siblings.shared_limits import SharedLimits
from gateway.siblings.siblings import Siblings
from gateway.usage.recorder import UsageRecorder
from gateway.usage_today import used_today
from protocol.config.config import GatewayConfig
from protocol.config.usage_config import usage_folder
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from gateway.tracing.tracing import Tracing


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The parts behind the endpoints: pool, and model manager if there is one."""

    pool: Pool
    models: ModelManager | None
    supervisor: SupervisorLink
    feed: PoolFeed
    siblings: Siblings
    shared: SharedLimits
    keeper: StreamKeeper
    usage: UsageRecorder | None
    """Writes what requests have cost; None unless there is a folder for it."""
    tracing: "Tracing | None"
    """None unless traces are turned on: its library is imported only then."""

    async def start(self, *, joins: bool = False) -> None:
        """Start all parts, with `joins` beside another gateway; raises `ConfigError`."""
        if self.usage is not None:
            await asyncio.to_thread(self.usage.open)
        await self.pool.start(joins=joins)
        self.feed.open()
        self.supervisor.open()
        if self.models is not None:
            await self.models.start()

    def retire(self) -> None:
        """End the streams that would never end, because another gateway serves them now."""
        self.pool.retire()
        self.feed.end()
        self.keeper.sessions.drain()
        if self.models is not None:
            self.models.events.end()

    def drain(self) -> None:
        """Refuse new work, and end kept streams that no client reads."""
        self.pool.dispatcher.drain()
        self.keeper.sessions.drain()
        if self.models is not None:
            self.models.drain()

    async def close(self) -> None:
        """End everything at once; `settle` follows when the answers have ended."""
        self.feed.close()
        self.shared.close()
        self.keeper.sessions.close()
        if self.models is not None:
            self.models.close()
        self.supervisor.close()
        await self.pool.close()

    async def settle(self) -> None:
        """Log the requests that are left, and write down what all have cost."""
        self.pool.requests.close()
        if self.usage is not None:
            await asyncio.to_thread(self.usage.close)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    @property
    def outermost(self) -> Sequence[Middleware]:
        """Return the layer that traces requests, if that is turned on."""
        return [] if self.tracing is None else [self.tracing.middleware()]


def parts_of(
    config: GatewayConfig, metrics: Metrics, expected: Sequence[ExpectedWorker] = ()
) -> GatewayParts:
    """Make the pool, and the model manager if the configuration has one; raises `ConfigError`."""
    pool = Pool(config, metrics)
    pool.dispatcher.slots.expect(expected)
    supervisor = SupervisorLink(
        config.control,
        ask=pool.calls.complete,
        retired=pool.forget_worker,
        timeout_s=config.timeout_s,
    )
    _tell_of_processes(supervisor, pool, metrics)
    models = _model_manager(config, pool)
    siblings = Siblings(config.siblings)
    sources = FeedSources(
        pool=pool,
        metrics=metrics,
        supervisor=supervisor,
        models=models,
        siblings=siblings,
        has_keys=config.has_keys,
    )
    tracing = _tracing() if config.otel else None
    usage = _usage(config, siblings)
    shared = SharedLimits(pool, siblings, partial(used_today, usage_folder(config.usage_dir)))
    if usage is not None:
        pool.requests.pay = usage.put
    return GatewayParts(
        pool,
        models,
        supervisor,
        PoolFeed(sources),
        siblings,
        shared,
        StreamKeeper(config),
        usage,
        tracing,
    )


def _tell_of_processes(supervisor: SupervisorLink, pool: Pool, metrics: Metrics) -> None:
    """Let pool and metrics know the processes that are not connected."""
    pool.status.why_absent = supervisor.why_absent
    metrics.away = lambda: away(pool.status.workers(), supervisor.report)
    metrics.n_gateway_restarts = lambda: supervisor.n_gateway_restarts


def _usage(config: GatewayConfig, siblings: Siblings) -> UsageRecorder | None:
    """Make what writes the usage, if it has a folder."""
    folder = usage_folder(config.usage_dir)
    return UsageRecorder(Path(folder), config.usage, siblings.name) if folder else None


def _tracing() -> "Tracing":
    """Set up the traces; raises `ConfigError`, also if the extra `otel` is not installed."""
    try:
        from gateway.tracing.tracing import open_tracing

        return open_tracing()
    except ValueError as error:  # OpenTelemetry reads some variables when it is imported
        raise ConfigError(str(error)) from error
    except ImportError as error:
        raise ConfigError(
            f"otel: {error.name} is missing: pip install 'llamapool[otel]'"
        ) from error


def _model_manager(config: GatewayConfig, pool: Pool) -> ModelManager | None:
    """Make the manager of models that are loaded on demand, if any are; raises `ConfigError`."""
    if not (config.models_on_demand or config.models_dir or config.models_preset):
        return None
    if not config.control:
        raise ConfigError("models_dir, models_preset: only `llamapool serve` can start models")
    return ModelManager(
        config.control, pool, models_max=config.models_max, timeout_s=config.timeout_s
    )
