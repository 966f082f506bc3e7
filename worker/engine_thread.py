"""The engine's thread: it loads the backend, runs the engine, and frees the backend at the end.

Each loading of the model has a thread of its own. A worker that falls asleep ends the thread, and
starts another for the next task; clients' settings and the counters are passed on (`SleepState`).
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.process.imports import importing
from protocol.wire.accounts import AccountTable
from protocol.wire.facts import ModelCard
from worker.drafting import open_drafter
from worker.engine.adapters import Scales
from worker.engine.backend import Backend
from worker.engine.engine import Engine
from worker.engine.engine_config import EngineConfig
from worker.engine.fake.backend import FakeBackend
from worker.engine.speculation.draft import Drafter
from worker.engine.stats import Counters
from worker.engine.task import Stop
from worker.engine_settings import engine_config
from worker.link.outbound import OutboundQueue

logger = logging.getLogger(__name__)

Progress = Callable[[float], None]
Opener = Callable[[WorkerConfig, Progress], Backend]
"""Loads a model: `open_backend`, or a test's replacement."""


@dataclass(frozen=True, slots=True)
class SleepState:
    """State that is kept while the worker sleeps."""

    card: ModelCard
    scales: Scales
    """Scales of the LoRA adapters, as last set."""
    counters: Counters


class EngineThread:
    """Owns one backend and its engine, from loading to freeing."""

    def __init__(
        self,
        config: WorkerConfig,
        outbound_queue: OutboundQueue,
        opener: Opener,
        kept: SleepState | None = None,
        accounts: AccountTable | None = None,
    ) -> None:
        """`kept` is the state of the previous thread, with its accounts."""
        self._config = config
        self._outbound_queue = outbound_queue
        self._opener = opener
        self._kept = kept
        self._accounts = accounts
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._ended = threading.Event()
        self.engine: Engine | None = None
        self.backend: Backend | None = None
        self.error: Exception | None = None

    def start(self, on_load: Progress) -> None:
        """Start the thread, which loads the model first."""
        self._on_load = on_load
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to free the model and end; `has_ended` tells when it has."""
        if self.engine is not None:
            self.engine.submit(Stop())

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, after `stop` or because loading or computing failed."""
        return self._ended.is_set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread; it may be inside a long decode."""
        self._thread.join(timeout_s)

    def release(self) -> SleepState:
        """Drop engine and backend, once the thread has ended; return the state to keep."""
        engine, backend = self.engine, self.backend
        assert self.has_ended and engine is not None and backend is not None
        self.engine = self.backend = None
        return SleepState(backend.card, engine.tasks.scales, engine.counters)

    def _run(self) -> None:
        try:
            self._live()
        except Exception as error:
            self.error = error
            if not isinstance(error, ConfigError):
                logger.exception("engine thread failed", extra={"action": "the worker ends"})
        self._ended.set()
        self._outbound_queue.wake()

    def _live(self) -> None:
        backend, drafter, config = open_parts(self._config, self._opener, self._on_load)
        engine = Engine(backend, config, self._outbound_queue.put, drafter, self._accounts)
        if self._kept is not None:
            _restore(engine, backend.card, self._kept)
        self.backend, self.engine = backend, engine
        self._outbound_queue.wake()
        engine.run()
        if drafter is not None:
            drafter.close()
        backend.close()


def _restore(engine: Engine, card: ModelCard, kept: SleepState) -> None:
    """Restore kept state in a new engine; raises `ConfigError` if the model is another one."""
    if card != kept.card:
        raise ConfigError(f"{card.path} has changed while the worker slept")
    engine.tasks.scales = kept.scales
    for field in fields(Counters):
        setattr(engine.counters, field.name, getattr(kept.counters, field.name))
    engine.counters.n_kv_used = engine.counters.n_kv_busy = 0


def open_parts(
    config: WorkerConfig, opener: Opener, on_load: Progress
) -> tuple[Backend, Drafter | None, EngineConfig]:
    """Open what an engine is made of; raises `ConfigError` if a worker cannot run so."""
    backend = opener(config, on_load)
    return backend, open_drafter(config, backend), engine_config(config, backend)


def open_backend(config: WorkerConfig, on_load: Progress) -> Backend:
    """Open the backend that the configuration names."""
    if config.backend == "fake":
        return FakeBackend(config)
    # Imported here: slow, and a worker with the fake backend must run without it.
    with importing():  # a collection over its objects would stop decoding for 30 ms
        from worker.llama.backend import LlamaBackend
    return LlamaBackend(config, on_load)
