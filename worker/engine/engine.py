"""The loop of the engine's thread: take commands, admit tasks, do a step, release what has ended.

The thread owns the backend. It knows neither sockets nor JSON: commands come through `submit`, and
the messages of a step leave in one call of `emit`.
"""

import contextlib
import logging
import queue
from dataclasses import replace

from protocol.errors import ErrorCode, TaskError
from protocol.wire.accounts import AccountTable
from protocol.wire.messages import (
    Done,
    Envelope,
    Finish,
    Heartbeat,
    Inspected,
    TaskKey,
)
from worker.engine.backend import Backend
from worker.engine.cache.cache import PrefixCache
from worker.engine.cache.sequences import CacheLimits
from worker.engine.engine_config import EngineConfig
from worker.engine.engine_jobs import EngineJobs
from worker.engine.results import Outbox
from worker.engine.scheduling.admission import Admission
from worker.engine.scheduling.budget import StepBudget
from worker.engine.scheduling.lifecycle import TaskLifecycle
from worker.engine.scheduling.policy import StepPolicy
from worker.engine.slot import Slot
from worker.engine.speculation.draft import Drafter, Speculator
from worker.engine.stats import Counters
from worker.engine.step import Step, StepRules
from worker.engine.task import (
    Abort,
    AbortAll,
    Announce,
    Command,
    Emit,
    EngineJob,
    ProceedWith,
    Report,
    Stop,
    Submit,
    failed,
)

logger = logging.getLogger(__name__)

_ENCODER_PAUSE_S = 0.002
"""Pause between two looks at the encoder while nothing else can be computed. It takes 30 ms or more
for an image, and a look 0.1 ms."""


class Engine:
    """Owns the slots and the backend; `run` is what the thread does.

    It counts the cost of tasks in `accounts`, by default in memory of this process alone.
    """

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig,
        emit: Emit,
        drafter: Drafter | None = None,
        accounts: AccountTable | None = None,
    ) -> None:
        self._backend = backend
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping = False
        self._has_released = False
        """A task has ended since waiting tasks were last admitted."""
        self.slots = [Slot(i, config.n_ctx) for i in range(config.n_slots)]
        self.counters = Counters(n_kv=backend.card.n_ctx_total, accounts=accounts or AccountTable())
        extends = config.self_extend is not None
        # With self-extend nothing that a slot holds is of use to another task.
        limits = CacheLimits(config.host_bytes, config.n_checkpoints, config.checkpoint_bytes)
        self.cache = PrefixCache(backend, self.slots, self.counters, limits, is_on=not extends)
        self._outbox = Outbox(emit, self.cache.blocks)
        self.step_target_s = config.step_target_s
        """Longest time of a step, in seconds."""
        budget = StepBudget(config.step_target_s, backend.n_batch, token_s=backend.prefill_token_s)
        n_drafted = max(0, backend.n_outputs - config.n_slots)
        speculator = Speculator(drafter, n_slots=config.spec_slots, n_rows=n_drafted)
        policy = StepPolicy(backend, speculator, config.self_extend)
        rules = StepRules(policy, budget, config.context_shift, config.self_extend)
        self._step = Step(backend, self.cache, rules, self._outbox)
        self._drafter = drafter
        self._shows_texts = config.shows_texts
        self._results = self._step.results
        self.progress = self._step.progress
        self.progress.min_stall_s = config.stall_s
        self._jobs = EngineJobs(self.counters, self.progress, config.step_target_s)
        admission = Admission(self.cache, config.n_ctx, config.similarity, cuts=not extends)
        self.tasks = TaskLifecycle(backend, self.cache, admission, self._results, drafter)
        self.failure: str | None = None
        """Why the loop ended by itself: the backend is broken and the process must end."""

    # ---- any thread ---------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Hand a command to the loop; it takes effect between two steps."""
        self._commands.put(command)

    @property
    def n_busy(self) -> int:
        """Slots that serve a task."""
        return self.tasks.n_busy

    @property
    def n_running(self) -> int:
        """Slots for which there is something to compute."""
        return self.n_busy - sum(slot.is_paused for slot in self.slots)

    @property
    def n_waiting(self) -> int:
        """Tasks that wait here for a slot."""
        return self.tasks.n_waiting

    @property
    def encoding_since(self) -> float:
        """When the encoder began the image or sound that it works on (monotonic), or 0."""
        encoder = self._backend.encoder
        return 0.0 if encoder is None else encoder.started_s

    def heartbeat(self) -> Heartbeat:
        """Describe the progress: `step` grows while the engine works."""
        return Heartbeat(
            step=self.progress.number,
            busy=max(self.n_running, int(self.progress.started_s > 0)),
            waiting=self.n_waiting,
            stats=self.counters.snapshot(),
            stall_s=self.progress.stall_s,
        )

    # ---- the engine thread --------------------------------------------------------------------

    def run(self) -> None:
        """Work until `Stop` comes or the backend is broken."""
        try:
            while not self._stopping and self.failure is None:
                self.turn()
        except Exception as error:
            logger.exception(
                "engine failed", extra={"action": "the worker ends; what it runs fails"}
            )
            self.failure = f"{type(error).__name__}: {error}"
        self._end(self.failure or "the worker stops")
        self._outbox.flush()

    def turn(self) -> None:
        """Do one turn of the loop; wait for a command if there is nothing to compute.

        The messages of a step leave while the next one computes, because the link's thread needs
        the interpreter lock, which this thread holds until then.
        """
        self._take_commands()
        if self._jobs.can_do(self.slots):
            self._do_jobs()
        if self.n_waiting:
            self.tasks.admit(self.progress)
        self._has_released = False
        if not self._stopping and self.n_running:
            self._step.run()
            for slot in self._results.finished:
                self.tasks.release(slot)
                self._has_released = True
            self._results.finished.clear()
            self.failure = self._step.failure
        if not self.n_running:
            self._outbox.flush()
        self.progress.rest()

    def _take_commands(self) -> None:
        if not self._has_work():
            self._step.pause()
            self._execute(self._commands.get())
        elif self._step.awaits_encoder:
            self._step.pause()
            with contextlib.suppress(queue.Empty):
                self._execute(self._commands.get(timeout=_ENCODER_PAUSE_S))
        while not self._commands.empty():
            self._execute(self._commands.get_nowait())

    def _has_work(self) -> bool:
        """Return whether a turn has anything to do without a new command.

        Waiting tasks and jobs may need a slot whose task pauses.
        """
        can_admit = self._has_released and self.n_waiting > 0
        return self.n_running > 0 or can_admit or self._jobs.can_do(self.slots)

    def _execute(self, command: Command) -> None:
        """Carry a command out; an exception becomes the task's terminal message, if it has one."""
        self.progress.begin()
        try:
            self._apply(command)
        except Exception as error:
            match command:
                case Report(key) | Abort(key):
                    self._outbox.put(failed(key, self.counters.fault(key, error)))
                case _:
                    logger.exception(
                        "command failed",
                        extra={"kind": type(command).__name__, "action": "the engine goes on"},
                    )

    def _apply(self, command: Command) -> None:
        match command:
            case Submit(task, more):
                self.tasks.add(task, *more)
            case Abort(key):
                self._abort(key)
            case ProceedWith(key):
                self._step.proceed(key)
            case AbortAll(connection):
                self._jobs.drop_of(connection)
                self.tasks.abort_all(connection)
            case Announce():
                self._outbox.extend(self.cache.blocks.everything())
            case Report(key):
                self._outbox.put(Envelope(key, self._inspected(key.connection)))
            case EngineJob():
                self._outbox.extend(self._jobs.take(command))
            case Stop():
                self._stopping = True

    def _do_jobs(self) -> None:
        """Do the jobs whose slots are idle now, and one job that takes as long as a step."""
        self._outbox.flush()
        self._outbox.extend(self._jobs.do_for_idle(self.slots))
        if not self._stopping:
            self._outbox.extend(self._jobs.do_heavy(self.slots))
            self._step.pause()

    def _abort(self, key: TaskKey) -> None:
        """End an attempt in any state; one that has ended gets no second terminal message."""
        if (job := self._jobs.abort(key)) is not None:
            self._outbox.put(Envelope(key, Done(finish=Finish.CANCELLED, usage=job.usage())))
        self.tasks.abort(key)

    def _end(self, reason: str) -> None:
        """Fail the remaining tasks.

        A broken engine does not fail tasks that it has not started: when the gateway has lost this
        worker, it gives them to another one.
        """
        error = TaskError(ErrorCode.INTERNAL, f"the worker cannot go on: {reason}")
        not_started = self.tasks.drop_waiting()
        not_started += [job.key for job in self._jobs.drop()]
        if self.failure is None:
            self._outbox.extend(failed(key, error) for key in not_started)
        for slot in self.tasks.busy():
            self._outbox.put(failed(slot.active.task.key, error, slot.active.usage))
            self.tasks.release(slot)

    def _inspected(self, connection: int) -> Inspected:
        """Describe each slot, for the gateway that asks over this connection."""
        render = self._backend.vocabulary.render if self._shows_texts else None
        drafts = self._drafter is not None
        reports = [
            replace(
                slot.report(is_speculative=drafts, render=render),
                is_foreign=slot.connection not in (-1, connection),
            )
            for slot in self.slots
        ]
        return Inspected(slots=tuple(reports))

    def __repr__(self) -> str:
        return f"<Engine busy={self.n_busy}/{len(self.slots)} waiting={self.n_waiting}>"
