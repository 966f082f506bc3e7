"""One worker process from start to exit: engine thread, link, sleep, signals, exit code."""

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import zmq

from protocol.config.config import WorkerConfig
from protocol.curve import is_exposed
from protocol.errors import (
    EXIT_CONFIG,
    EXIT_ERROR,
    EXIT_OK,
    ConfigError,
    ErrorCode,
    TaskError,
)
from protocol.process.logs import LOG_FD_VARIABLE
from protocol.process.notify import Notifier
from protocol.process.shared_memory import make_shared
from protocol.system_prompt import load_system_prompt
from protocol.wire.accounts import N_BYTES, AccountTable
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Hello
from protocol.wire.side_tasks import SetSystemPrompt
from worker.embedding.batcher import EmbeddingBatcher
from worker.engine.engine import Engine
from worker.engine_thread import EngineThread, Opener, SleepState, open_backend
from worker.host.process_environment import process_environment
from worker.host.topology import bind
from worker.link.gateways.connection import GatewayConnection
from worker.link.gateways.dialer import CurveFiles
from worker.link.link import Link
from worker.link.outbound import OutboundQueue
from worker.link.tasks.opening import open_reader
from worker.link.tasks.side_tasks import SideTasks
from worker.prompt.prompt import PromptReader
from worker.settings.fingerprint import fingerprint
from worker.sleep import NEXT, IdleTime, SleepPhase
from worker.watchdog import Watchdog

logger = logging.getLogger(__name__)

_LEAVES = {EXIT_OK: "drained", EXIT_CONFIG: "cannot work as configured"}


class WorkerProcess:
    """Owns the parts of a worker; `run` serves until the process ends."""

    def __init__(
        self,
        config: WorkerConfig,
        opener: Opener = open_backend,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_held: bool = False,
    ) -> None:
        """Make the parts; with `is_held` no client's task is taken before SIGUSR1 comes."""
        self._config = config
        self._opener = opener
        self._clock = clock
        self._notifier = Notifier.from_environ()
        self._watchdog = Watchdog(self._notifier, config.stall_s)
        self._outbound_queue = OutboundQueue()
        hello, accounts = _hello_and_accounts(config)
        self._thread = EngineThread(config, self._outbound_queue, opener, accounts=accounts)
        self._phase = SleepPhase.LOADING
        self._idle = IdleTime(config.sleep_idle_s)
        self._reader: PromptReader | None = None
        self._kept: SleepState | None = None
        self._system: SetSystemPrompt | None = None
        self._zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        name = f"{hello.worker}:{hello.epoch}"
        files = _curve_files(config)
        connections = [
            GatewayConnection(self._zmq, endpoint, name, number, files)
            for number, endpoint in enumerate(config.connect)
        ]
        self._link = Link(connections, self._outbound_queue, hello, is_held=is_held)
        self._link.tasks.request_ids.install()
        self._n_signals = 0
        self._is_admitted = False
        self._is_announced = False
        self._reported = -1

    def run(self) -> int:
        """Serve until told to stop, or until the engine cannot go on; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_admission)
        self.open()
        try:
            while (code := self.turn()) is None:
                pass
            self._notifier.stopping()
            is_failure = code not in _LEAVES
            self._link.close(_LEAVES.get(code) or self._exit_reason(), is_failure=is_failure)
            return code
        finally:
            self.close()

    def open(self) -> None:
        """Connect to the gateways and begin to load the model."""
        self._link.open()  # first: without its keys the worker ends before anything is loaded
        self._thread.start(self._on_load)

    def close(self) -> None:
        """Close every socket, also after an error."""
        self._zmq.destroy(linger=0)
        self._outbound_queue.close()
        self._notifier.close()

    def turn(self) -> int | None:
        """Do one turn of the main loop; return the exit code if it was the last."""
        self._link.turn(self._watchdog.turn_s)
        if self._link.refused:
            error = ConfigError(f"refused by the gateway: {self._link.refused}")
            refuse(error, self._notifier)
            return EXIT_CONFIG
        if (code := self._follow_model()) is not None:
            return code
        if not self._is_announced and self._link.is_open:
            self._notifier.ready(f"serving {self._config.alias}")
            self._is_announced = True
        if self._is_admitted:
            self._link.admit()
        if self._n_signals:
            self._link.drain()
        if self._link.draining and self._link.is_idle:
            self._thread.stop()
            self._thread.join(timeout_s=5.0)
            return EXIT_OK
        self._watchdog.check(self._thread.engine, self._link.preparation)
        self._watchdog.feed(self._state)
        return None

    # ---- the model ----------------------------------------------------------------------------

    def _follow_model(self) -> int | None:
        """Attach, free or load the model as needed; return the exit code if loading has failed."""
        match self._phase:
            case SleepPhase.LOADING | SleepPhase.AWAKE | SleepPhase.CLOSING if self._has_failed():
                return self._end_without_model()
            case SleepPhase.LOADING if self._thread.engine is not None:
                self._become(SleepPhase.AWAKE)
                self._attach(self._thread.engine)
            case SleepPhase.AWAKE if (
                self._idle.is_over(
                    self._clock(),
                    n_tasks=self._link.tasks.n_taken,
                    is_idle=self._link.tasks.is_unused,
                )
                and self._link.is_idle
            ):
                self._become(SleepPhase.CLOSING)
                self._fall_asleep()
            case SleepPhase.CLOSING if self._thread.has_ended:
                self._become(SleepPhase.ASLEEP)
                self._sleep()
            case SleepPhase.ASLEEP if self._link.tasks.n_pending:
                self._become(SleepPhase.LOADING)
                self._wake()
        return None

    def _has_failed(self) -> bool:
        is_asked = self._phase is SleepPhase.CLOSING and self._thread.error is None
        return self._thread.has_ended and not is_asked

    def _become(self, phase: SleepPhase) -> None:
        assert NEXT[self._phase] is phase, f"{self._phase} cannot become {phase}"
        self._phase = phase

    def _fall_asleep(self) -> None:
        """Detach the model and let the engine's thread free it."""
        logger.info("falling asleep", extra={"idle_s": self._idle.limit_s})
        assert self._reader is not None
        self._system = self._reader.system_prompt
        self._reader = None
        self._link.detach()
        self._thread.stop()

    def _sleep(self) -> None:
        self._kept = self._thread.release()
        gc.collect()  # engine and backend refer to each other, so only the collector frees them
        logger.info("asleep")
        self._outbound_queue.wake()  # a task may have arrived meanwhile

    def _wake(self) -> None:
        """Load the model again; no progress is reported, because the slots stay open."""
        logger.info("waking up")
        self._thread = EngineThread(self._config, self._outbound_queue, self._opener, self._kept)
        self._thread.start(lambda _fraction: None)

    def _attach(self, engine: Engine) -> None:
        backend = self._thread.backend
        assert backend is not None
        self._idle.begin(self._clock())
        reader = open_reader(self._config, backend)
        embeddings: EmbeddingBatcher | None = None
        if backend.embedder is not None:
            embeddings = EmbeddingBatcher(backend, backend.embedder, engine)
        card = self._with_system_prompt(
            reader, replace(backend.card, fingerprint=fingerprint(self._config))
        )
        self._reader = reader
        self._link.attach(
            engine,
            reader,
            card,
            SideTasks(engine, backend, self._config.slot_save_path, self._config.slot_quota_mib),
            embeddings,
        )
        logger.info(
            "ready",
            extra={
                "model": backend.card.name,
                "n_slots": backend.card.n_slots,
                "n_ctx": backend.card.n_ctx_total,
                "build": backend.card.build,
            },
        )

    def _with_system_prompt(self, reader: PromptReader, card: ModelCard) -> ModelCard:
        """Set the system prompt of the configured file, and return the card with it.

        After sleep the one that was set before is restored.
        """
        if self._kept is not None:
            if self._system is not None:
                reader.set_system_prompt(self._system)
            return card
        if not self._config.system_prompt_file:
            return card
        system = load_system_prompt(Path(self._config.system_prompt_file))
        try:
            reader.set_system_prompt(
                SetSystemPrompt(prompt=system.prompt, anti_prompt=system.anti_prompt)
            )
        except TaskError as error:
            raise ConfigError(f"system_prompt_file: {error.message}") from error
        return replace(card, system_prompt=system)

    def _state(self) -> str:
        """Describe in one line what this worker does."""
        tasks = self._link.tasks
        doing = "draining" if self._link.draining else self._phase.value
        counts = f"{len(tasks.running)} tasks running, {tasks.n_taken} taken"
        return f"{self._config.alias}: {doing}, {counts}"

    def _exit_reason(self) -> str:
        """Return why the process ends by itself."""
        engine, error = self._thread.engine, self._thread.error
        broken = engine.failure if engine is not None else None
        return broken or (f"{type(error).__name__}: {error}" if error else "failed")

    def _end_without_model(self) -> int:
        """End the waiting tasks and return the exit code, because the engine's thread has ended."""
        reason = "The model could not be loaded again after sleeping"
        self._link.give_up(TaskError(ErrorCode.UNAVAILABLE, reason, detail={"retry_after_s": 1}))
        if isinstance(self._thread.error, ConfigError):
            refuse(self._thread.error, self._notifier)
            return EXIT_CONFIG
        return EXIT_ERROR

    def _on_load(self, fraction: float) -> None:
        """Report each percent of loading; called on the engine's thread."""
        percent = int(fraction * 100)
        if percent > self._reported:
            self._reported = percent
            self._notifier.progress(fraction)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._n_signals += 1
        if self._n_signals > 1:
            os._exit(EXIT_ERROR)
        self._outbound_queue.wake()

    def _on_admission(self, _number: int, _frame: FrameType | None) -> None:
        self._is_admitted = True
        self._outbound_queue.wake()


def _hello_and_accounts(config: WorkerConfig) -> tuple[Hello, AccountTable]:
    """Return the first message of this run, and the table that gateways here read after a death.

    If the system has no such memory, the gateway cannot read the table.
    """
    epoch, fd, memory = time.time_ns(), -1, None
    try:
        fd, memory = make_shared(N_BYTES)
    except OSError as error:
        logger.warning(
            "no shared memory",
            extra={"cause": error, "action": "if this worker dies, its last step is not counted"},
        )
    hello = Hello(worker=config.name, epoch=epoch, model=config.alias, accounts=fd)
    return hello, AccountTable(memory, epoch)


def _curve_files(config: WorkerConfig) -> CurveFiles | None:
    if not config.curve_key_file or not config.gateway_keys:
        return None
    secret = Path(config.curve_key_file)
    if secret.is_file() and is_exposed(secret):
        logger.warning("secret key readable by others", extra={"file": secret, "hint": "chmod 600"})
    return CurveFiles(secret, tuple(map(Path, config.gateway_keys)))


def run(config: WorkerConfig, *, is_held: bool = False) -> int:
    """Run one worker in this process; return its exit code."""
    # The engine thread takes the GIL again after each call into C; the default of 5 ms is too long.
    sys.setswitchinterval(0.0005)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    # A supervisor sets the same ones.
    os.environ.update(process_environment(config, os.environ))
    try:
        config = replace(config, cpus=bind(config.cpus))
        return WorkerProcess(config, is_held=is_held).run()
    except ConfigError as error:
        notifier = Notifier.from_environ()
        refuse(error, notifier)
        notifier.close()
        return EXIT_CONFIG


def refuse(error: ConfigError, notifier: Notifier) -> None:
    """Report why this worker cannot work; without a supervisor, log it here."""
    notifier.send(X_REASON=error, STATUS=error)
    if LOG_FD_VARIABLE not in os.environ:
        logger.critical(
            "cannot work", extra={"cause": error, "action": "the worker ends with code 78"}
        )
