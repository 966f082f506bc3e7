"""One worker process from start to exit: engine thread, link, signals, exit code."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import zmq

from protocol.config import WorkerConfig
from protocol.errors import ConfigError, TaskError
from protocol.facts import ModelCard
from protocol.messages import Hello, Loading
from protocol.notify import Notifier
from protocol.side_tasks import SetSystemPrompt
from protocol.system_prompt import load_system_prompt
from worker.connection import Connection
from worker.embedding import Desk
from worker.engine.backend import Backend
from worker.engine.engine import Engine, EngineConfig
from worker.engine.fake import FakeBackend
from worker.engine.selfextend import SelfExtend
from worker.engine.task import Stop
from worker.link import Link, Outlet
from worker.prompt import PromptReader
from worker.side import SideTasks
from worker.speculation import kinds, open_drafter

logger = logging.getLogger(__name__)

EXIT_OK, EXIT_ERROR, EXIT_STUCK, EXIT_CONFIG = 0, 1, 75, 78

CPU_STEP_TARGET_S, GPU_STEP_TARGET_S = 0.1, 0.04

STALL_FACTOR = 20
"""A busy engine that is silent for this many times its slowest step is stuck."""


class EngineThread:
    """Loads the backend and runs the engine on a thread of its own."""

    def __init__(self, config: WorkerConfig, outlet: Outlet, on_load: Callable[[float], None]):
        self._config = config
        self._outlet = outlet
        self._on_load = on_load
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.engine: Engine | None = None
        self.backend: Backend | None = None
        self.error: Exception | None = None

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """The thread is gone: by `Stop`, or because loading or computing failed."""
        return not self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread; it may be inside a long decode."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            backend = open_backend(self._config, self._on_load)
            drafter = open_drafter(self._config, backend)
            config = engine_config(self._config, backend)
            engine = Engine(backend, config, self._outlet.put, drafter)
            self.backend, self.engine = backend, engine
            self._outlet.wake()
            engine.run()
            if drafter is not None:
                drafter.close()
            backend.close()
        except Exception as error:
            self.error = error
            if not isinstance(error, ConfigError):
                logger.exception("engine thread failed")
        self._outlet.wake()


def open_backend(config: WorkerConfig, on_load: Callable[[float], None]) -> Backend:
    """Make the backend that the configuration names."""
    if config.backend == "fake":
        return FakeBackend(config)
    # Imported here: it takes a while, and a worker with the fake backend must not need it.
    from worker.llama.backend import LlamaBackend

    return LlamaBackend(config, on_load)


def engine_config(config: WorkerConfig, backend: Backend) -> EngineConfig:
    """Fill what depends on the loaded model into the engine's configuration."""
    default = GPU_STEP_TARGET_S if backend.is_gpu else CPU_STEP_TARGET_S
    return EngineConfig(
        n_slots=config.n_slots,
        n_ctx=backend.card.n_ctx,
        similarity=config.slot_similarity,
        step_target_s=config.step_target_ms / 1e3 or default,
        context_shift=config.context_shift,
        spec_slots=config.spec_slots,
        self_extend=self_extend(config, backend),
    )


def self_extend(config: WorkerConfig, backend: Backend) -> SelfExtend | None:
    """Return how positions are shared; raises `ConfigError` for what cannot be grouped."""
    n, width = config.grp_attn_n, config.grp_attn_w
    if n == 1:
        return None
    reason = ""
    if width % n:
        reason = f"grp_attn_w {width} must be a multiple of it"
    elif not backend.can_group:
        reason = "this kind of model has no positions that could be shared: use rope_scaling yarn"
    elif config.mmproj or kinds(config):
        reason = "it does not go together with mmproj or guessing ahead"
    if reason:
        raise ConfigError(f"grp_attn_n {n}: {reason}")
    return SelfExtend(n, width)


class WorkerProcess:
    """Holds the parts together; `run` is the process's whole life."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._notifier = Notifier.from_environ()
        self._outlet = Outlet()
        self._thread = EngineThread(config, self._outlet, self._on_load)
        self._zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        hello = Hello(
            worker=config.name,
            epoch=time.time_ns(),
            pid=os.getpid(),
            model=config.alias,
        )
        name = f"{hello.worker}:{hello.epoch}"
        self._link = Link(Connection(self._zmq, config.connect[0], name), self._outlet, hello)
        self._n_signals = 0
        self._next_watchdog = 0.0
        self._reported = -1

    def run(self) -> int:
        """Serve until told to stop, or until the engine cannot go on; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._thread.start()
        self._link.open()
        try:
            code = self._serve()
            self._notifier.stopping()
            self._link.close("drained" if code == EXIT_OK else "failed")
            return code
        finally:
            self._zmq.term()

    def _serve(self) -> int:
        attached = announced = False
        while True:
            self._link.turn()
            if self._thread.has_ended:
                return self._exit_code()
            if not attached and self._thread.engine is not None:
                self._attach(self._thread.engine)
                attached = True
            if self._link.is_open and not announced:
                self._notifier.ready(f"serving {self._config.alias}")
                announced = True
            if self._n_signals:
                self._link.drain()
            if self._link.draining and self._link.is_idle:
                self._stop_engine()
                return EXIT_OK
            self._prove_progress()

    def _attach(self, engine: Engine) -> None:
        backend = self._thread.backend
        assert backend is not None
        reader = PromptReader(
            backend,
            cuts_long=self._config.context_shift and self._config.grp_attn_n == 1,
            chat_stop=self._config.chat_stop or "",
            logs_prompts=self._config.verbose_prompt,
        )
        if backend.embedder is not None:
            target_s = engine_config(self._config, backend).step_target_s
            self._link.embed_with(Desk(backend, backend.embedder, engine, target_s))
        if self._config.lora_base:
            logger.warning("lora_base is not used: llama.cpp has no such thing any more")
        card = self._with_system_prompt(reader, backend.card)
        self._link.attach(
            engine, reader, card, SideTasks(engine, backend, self._config.slot_save_path)
        )
        logger.info(
            "ready model=%s slots=%d n_ctx=%d build=%s",
            backend.card.name,
            backend.card.n_slots,
            backend.card.n_ctx,
            backend.card.build,
        )

    def _with_system_prompt(self, reader: PromptReader, card: ModelCard) -> ModelCard:
        """Begin with the system prompt of the configured file, and tell the gateway its names."""
        if not self._config.system_prompt_file:
            return card
        system = load_system_prompt(Path(self._config.system_prompt_file))
        try:
            reader.set_system_prompt(
                SetSystemPrompt(task_id=0, prompt=system.prompt, anti_prompt=system.anti_prompt)
            )
        except TaskError as error:
            raise ConfigError(f"system_prompt_file: {error.message}") from error
        return replace(card, system_prompt=system)

    def _prove_progress(self) -> None:
        """Tell the watchdog that the engine moves; if it does not, go before others must ask."""
        engine = self._thread.engine
        since = engine.busy_since if engine is not None else 0.0
        if engine is not None and since:
            limit_s = max(self._config.stall_s, STALL_FACTOR * engine.slowest_step_s)
            stalled_s = time.monotonic() - since
            if stalled_s > limit_s:
                logger.critical("engine stuck in=%.1fs limit=%.1fs", stalled_s, limit_s)
                sys.stderr.flush()
                os._exit(EXIT_STUCK)  # the engine thread holds the library: nothing can be freed
        self._feed_watchdog()

    def _feed_watchdog(self) -> None:
        interval_s = self._notifier.watchdog_interval_s
        now = time.monotonic()
        if interval_s is not None and now >= self._next_watchdog:
            self._next_watchdog = now + interval_s / 2
            self._notifier.watchdog()

    def _stop_engine(self) -> None:
        if self._thread.engine is not None:
            self._thread.engine.submit(Stop())
            self._thread.join(timeout_s=5.0)

    def _exit_code(self) -> int:
        if isinstance(self._thread.error, ConfigError):
            print(f"llamapool worker: {self._thread.error}", file=sys.stderr)  # noqa: T201 # for a person
            return EXIT_CONFIG
        return EXIT_ERROR

    def _on_load(self, fraction: float) -> None:
        """Report each percent of loading; called on the engine's thread."""
        percent = int(fraction * 100)
        if percent > self._reported:
            self._reported = percent
            self._outlet.put([Loading(fraction=fraction)])
            self._notifier.progress(fraction)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._n_signals += 1
        if self._n_signals > 1:
            os._exit(EXIT_ERROR)
        self._outlet.wake()


def run(config: WorkerConfig) -> int:
    """Run one worker in this process; return its exit code."""
    # The engine thread re-takes the GIL after each call into C; the default of 5 ms would show.
    sys.setswitchinterval(0.0005)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        return WorkerProcess(config).run()
    except ConfigError as error:
        print(f"llamapool worker: {error}", file=sys.stderr)  # noqa: T201 # for a person
        return EXIT_CONFIG
