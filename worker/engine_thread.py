"""The engine's thread: it loads the backend, runs the engine, and frees the backend at the end.

Each loading of the model has a thread of its own. A worker that falls asleep ends the thread, and
starts another for the next task; clients' settings and the counters are passed on (`Kept`).
"""

import gc
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.wire.accounts import AccountTable
from protocol.wire.facts import ModelCard
from worker.engine.adapters import Scales
from worker.engine.backend import Backend
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.engine import Engine
from worker.engine.engine_config import EngineConfig
from worker.engine.fake.backend import FakeBackend
from worker.engine.stats import Counters
from worker.engine.task import Stop
from worker.link.outbound import OutboundQueue
from worker.speculation.drafting import open_drafter
from worker.speculation.kinds import kinds

logger = logging.getLogger(__name__)

CPU_STEP_TARGET_S, GPU_STEP_TARGET_S = 0.2, 0.04
"""Longest step while answers are streamed. Source: MLPerf Inference allows 0.2 s between two tokens
of Llama 2 70B in its server scenario, 0.04 s in its interactive one."""

Progress = Callable[[float], None]
Opener = Callable[[WorkerConfig, Progress], Backend]
"""Loads a model: `open_backend`, or a test's replacement."""


@dataclass(frozen=True, slots=True)
class Kept:
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
        kept: Kept | None = None,
        accounts: AccountTable | None = None,
    ) -> None:
        """`kept` is of the thread before, with its accounts."""
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
        """Ask the thread to end and free the model; `has_ended` is then True."""
        if self.engine is not None:
            self.engine.submit(Stop())

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, after `stop` or because loading or computing failed."""
        return self._ended.is_set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread; it may be inside a long decode."""
        self._thread.join(timeout_s)

    def release(self) -> Kept:
        """Drop engine and backend, once the thread has ended; return the state to keep."""
        engine, backend = self.engine, self.backend
        assert self.has_ended and engine is not None and backend is not None
        self.engine = self.backend = None
        return Kept(backend.card, engine.scales, engine.counters)

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
        backend = self._opener(self._config, self._on_load)
        drafter = open_drafter(self._config, backend)
        config = engine_config(self._config, backend)
        engine = Engine(backend, config, self._outbound_queue.put, drafter, self._accounts)
        if self._kept is not None:
            _go_on(engine, backend.card, self._kept)
        self.backend, self.engine = backend, engine
        self._outbound_queue.wake()
        engine.run()
        if drafter is not None:
            drafter.close()
        backend.close()


def _go_on(engine: Engine, card: ModelCard, kept: Kept) -> None:
    """Restore kept state in a new engine; raises `ConfigError` if the model is another one."""
    if card != kept.card:
        raise ConfigError(f"{card.path} is not the model any more that it was")
    engine.scales = kept.scales
    for one in fields(Counters):
        setattr(engine.counters, one.name, getattr(kept.counters, one.name))
    engine.counters.n_kv_used = engine.counters.n_kv_busy = 0


def open_backend(config: WorkerConfig, on_load: Progress) -> Backend:
    """Open the backend that the configuration names."""
    if config.backend == "fake":
        return FakeBackend(config)
    # Imported here: slow, and a worker with the fake backend must run without it.
    from worker.llama.backend import LlamaBackend

    # Objects of the imports live to the end; a collection over them would stop decoding for 30 ms.
    gc.freeze()
    return LlamaBackend(config, on_load)


def _is_debugged(environ: Mapping[str, str]) -> bool:
    """Return whether slots show clients' texts: LLAMA_SERVER_SLOTS_DEBUG is a number but 0."""
    number = re.match(r"\s*[-+]?\d+", environ.get("LLAMA_SERVER_SLOTS_DEBUG", ""))
    return number is not None and int(number[0]) != 0


def engine_config(config: WorkerConfig, backend: Backend) -> EngineConfig:
    """Return the engine's configuration, with the values that depend on the loaded model."""
    default = GPU_STEP_TARGET_S if backend.is_gpu else CPU_STEP_TARGET_S
    return EngineConfig(
        n_slots=config.n_slots,
        n_ctx=backend.card.n_ctx,
        similarity=config.slot_similarity,
        step_target_s=config.step_target_ms / 1e3 or default,
        context_shift=config.context_shift,
        spec_slots=config.spec_slots,
        host_bytes=host_bytes(config.cache_ram),
        self_extend=self_extend(config, backend),
        shows_texts=_is_debugged(os.environ),
        stall_s=config.stall_s,
    )


def host_bytes(n_mib: int) -> int:
    """Return the size of the host cache in bytes: at most a quarter of the machine's memory."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    return most if n_mib < 0 else min(most, n_mib << 20)


def self_extend(config: WorkerConfig, backend: Backend) -> SelfExtend | None:
    """Return the settings of self-extend; raises `ConfigError` if this model cannot do it."""
    n, width = config.grp_attn_n, config.grp_attn_w
    if n == 1:
        return None
    reason = ""
    if width % n:
        reason = f"grp_attn_w {width} must be a multiple of it"
    elif not backend.can_group:
        reason = "this kind of model has no positions that could be shared: use rope_scaling yarn"
    elif config.mmproj or kinds(config):
        reason = "it does not go together with mmproj or speculative decoding"
    if reason:
        raise ConfigError(f"grp_attn_n {n}: {reason}")
    return SelfExtend(n, width)
