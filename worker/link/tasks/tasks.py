"""All tasks of a worker from their arrival to their end; used by the link's thread only.

A task waits for the model, is prepared on another thread (`Preparation`), runs in
the engine, and ends with one terminal message. A failure ends its own task and no other; it is
logged with the task's id and counted.
"""

import logging
from collections.abc import Collection, Sequence

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.process.request_ids import RequestIds
from protocol.wire import messages as m
from protocol.wire import side_tasks as s
from protocol.wire.messages import Envelope, FrameItem, TaskKey
from worker.embedding.batcher import EmbeddingBatcher
from worker.embedding.inputs import LongInputs, MediaInput, long_inputs
from worker.engine.engine import Engine
from worker.engine.task import (
    Abort,
    AbortAll,
    EngineJob,
    EngineTask,
    ProceedWith,
    Report,
    Submit,
    failed,
    internal_error,
)
from worker.link.outbound import RunningTasks
from worker.link.tasks.jobs import ORDERS, Outcome, job_of, shares_prompt
from worker.link.tasks.preparation import Overrun, Preparation, PreparationJob
from worker.link.tasks.side_tasks import SideTasks
from worker.prompt.prompt import Prepared, PromptReader

logger = logging.getLogger(__name__)


class Tasks:
    """Tracks where each task is, and begins its next stage."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._engine: Engine | None = None
        self._reader: PromptReader | None = None
        self._side: SideTasks | None = None
        self._embeddings: EmbeddingBatcher | None = None
        self._pending: dict[TaskKey, Envelope] = {}
        """Tasks that wait until the model is loaded, in the order of their arrival."""
        self._fresh: list[Envelope] = []
        """Generations of the frame that is being read, which share one prompt."""
        self._preparing: dict[TaskKey, PreparationJob] = {}
        self.running = RunningTasks(self._parser_failed)
        """Tasks that the engine has been given and has not ended."""
        self._inspections: set[TaskKey] = set()
        """Those of them that ask for the state of the slots."""
        self.request_ids = RequestIds()
        self.n_taken = 0
        """Number of all tasks so far that use the model."""
        self.n_faults = 0
        """Tasks that ended by an exception which no task should cause."""

    def __repr__(self) -> str:
        n_pending, n_preparing = len(self._pending), len(self._preparing)
        return f"<Tasks pending={n_pending} preparing={n_preparing} running={len(self.running)}>"

    def counts(self, connection: int) -> tuple[int, int, int]:
        """Count the tasks of a gateway that are pending, being prepared, and running."""
        places = (self._pending, self._preparing, self.running.keys)
        pending, preparing, running = (
            sum(key.connection == connection for key in keys) for keys in places
        )
        return pending, preparing, running

    # ---- the model ----------------------------------------------------------------------------

    def attach(
        self,
        engine: Engine,
        reader: PromptReader,
        side: SideTasks | None,
        embeddings: EmbeddingBatcher | None,
    ) -> list[FrameItem]:
        """Begin the tasks that wait for the model; return messages to send at once."""
        self._engine, self._reader = engine, reader
        self._side, self._embeddings = side, embeddings
        pending, self._pending = self._pending, {}
        messages = [message for task in pending.values() for message in self._begin(task)]
        self.flush()
        return messages

    def detach(self) -> None:
        """Release the engine, which is idle; tasks that come wait until a model is loaded again."""
        assert self.is_idle, f"{self!r} cannot let go"
        if self._side is not None:
            self._side.close()
        self._engine = self._reader = self._side = self._embeddings = None

    def give_up(self, error: TaskError) -> list[Envelope]:
        """Fail the tasks that wait for the model: it cannot be loaded."""
        pending, self._pending = self._pending, {}
        return [failed(key, error) for key in pending]

    @property
    def n_pending(self) -> int:
        """Tasks that wait for the model."""
        return len(self._pending)

    @property
    def n_preparing(self) -> int:
        """Tasks that are on their way to the engine."""
        return len(self._preparing)

    @property
    def is_idle(self) -> bool:
        """No task is here at all, and no thread works for one that was."""
        is_at_files = self._side is not None and self._side.is_at_files
        return self.is_unused and not self.running and not is_at_files

    @property
    def is_unused(self) -> bool:
        """No task is here but inspections of the slots, for which no model has to stay loaded."""
        self._inspections &= self.running.keys
        here = self._preparing or self._pending or self._fresh or self._preparation
        return not here and len(self.running) == len(self._inspections)

    # ---- in -----------------------------------------------------------------------------------

    def take(self, envelope: Envelope) -> list[FrameItem]:
        """Take a task; return messages to send at once. `flush` ends the frame."""
        is_inspection = isinstance(envelope.payload, m.Inspect)
        self.n_taken += not is_inspection
        key, payload, _ = envelope
        if isinstance(payload, m.ClientTask) and payload.request_id:
            self.request_ids.note(key.id, payload.request_id)
        logger.debug("task taken", extra={"task": key.id, "attempt": key.attempt})
        if self._engine is None and is_inspection:
            error = TaskError(ErrorCode.UNAVAILABLE, "the model is not loaded")
            return [failed(envelope.task, error)]
        if self._engine is None:
            self._pending[key] = envelope
            return []
        return self._begin(envelope)

    def flush(self) -> None:
        """Prepare the generations that share a prompt as one job."""
        fresh, self._fresh = self._fresh, []
        if fresh:
            self._prepare(fresh)

    def cancel(self, key: TaskKey) -> list[FrameItem]:
        """Cancel a task, wherever it is; return its end if it did not run."""
        envelope = self._pending.get(key)
        if envelope is not None and not isinstance(envelope.payload, ORDERS):
            del self._pending[key]
            return [_cancelled(key)]
        self.flush()
        if key in self.running:
            self._abort(key)
            return []
        job = self._preparing.get(key)
        if job is None or job.is_alone:  # an order, which must be carried out
            return []
        self._unprepare(key)
        return [_cancelled(key)]

    def proceed(self, key: TaskKey) -> None:
        """Let a paused answer go on; its `Started` has been sent."""
        if self._engine is not None and key in self.running:
            self._engine.submit(ProceedWith(key))

    def clear(self, connection: int, orders: Collection[TaskKey]) -> Collection[TaskKey]:
        """Forget what came over a connection: the gateway that wanted it is gone.

        A line for each task is all that is left of its request: the gateway may have been killed.
        Returns those of the orders that have begun, and go on.
        """
        dropped = self._preparation.drop(connection)
        kept = [key for key in orders if key.connection == connection and self._began(key, dropped)]
        for keys in (self._pending, self._preparing, self.running.keys):
            for key in keys:
                if key.connection == connection and key not in kept:
                    logger.info("task dropped", extra={"task": key.id, "attempt": key.attempt})
        self._fresh = [
            envelope for envelope in self._fresh if envelope.task.connection != connection
        ]
        for tasks in (self._pending, self._preparing):
            for key in [key for key in tasks if key.connection == connection and key not in kept]:
                del tasks[key]
        self.running.clear(connection, kept)
        if self._embeddings is not None:
            self._embeddings.drop_all(connection)
        if self._side is not None:
            self._side.drop(connection)
        if self._engine is not None:
            self._engine.submit(AbortAll(connection))
        return kept

    def _began(self, key: TaskKey, dropped: Collection[PreparationJob]) -> bool:
        """Whether a task was given to the engine or to a thread."""
        job = self._preparing.get(key)
        return key in self.running or (job is not None and job not in dropped)

    def _begin(self, envelope: Envelope) -> list[FrameItem]:
        """Begin a task; return its end if that has come already."""
        try:
            self._start(envelope)
        except TaskError as error:
            return [failed(envelope.task, error)]
        except Exception as error:
            return [self._faulty(envelope.task, error)]
        return []

    def _start(self, envelope: Envelope) -> None:
        assert self._engine is not None
        key, message, slot = envelope
        match message:
            case m.Generate():
                if self._fresh and not shares_prompt(self._fresh[0].payload, message):
                    self.flush()
                self._fresh.append(envelope)
                return
            case s.Render() | s.SetSystemPrompt() | m.Tokenize() | m.Detokenize():
                self.flush()
                self._prepare([envelope])
                return
            case m.Inspect():
                self._inspections.add(key)
                self._engine.submit(Report(key))
            case s.EndReasoning():
                self._engine.submit(end_reasoning(self._engine, key, message))
            case s.SlotAction() | s.SetLora() if self._side is not None:
                self._side.start(key, message, slot)
            case s.Embed() | s.Rerank():
                if self._embeddings is None:
                    raise TaskError(ErrorCode.NOT_SUPPORTED, "this worker makes no embeddings")
                if (isinstance(message, s.Embed) and message.media) or long_inputs(message):
                    self._prepare([envelope])
                    return
                self._embeddings.open(key, message)
            case _:
                what = f"unexpected task {type(message).__name__}"
                raise TaskError(ErrorCode.NOT_SUPPORTED, what)
        self.running.add(key)

    # ---- preparing ----------------------------------------------------------------------------

    def _prepare(self, envelopes: Sequence[Envelope]) -> None:
        """Do the slow part on a thread; `prepared` continues with its outcome."""
        assert self._reader is not None
        job = job_of(self._reader, envelopes)
        for envelope in envelopes:
            self._preparing[envelope.task] = job
        self._preparation.submit(job)

    def _unprepare(self, key: TaskKey) -> None:
        job = self._preparing.pop(key)
        if not self._keys_of(job):
            self._preparation.discard(job)

    def _keys_of(self, job: PreparationJob) -> list[TaskKey]:
        """List the tasks of a job that were not cancelled."""
        return [key for key in job.keys if self._preparing.get(key) is job]

    def prepared(self) -> list[FrameItem]:
        """Submit the prepared tasks to the engine; return the ends of those that failed."""
        messages: list[FrameItem] = []
        ready: list[EngineTask] = []
        for job in self._preparation.take():
            for key, outcome in self._results(job):
                messages += self._settle(key, outcome, ready)
        if ready:
            assert self._engine is not None
            self._engine.submit(Submit(ready[0], tuple(ready[1:])))
        return messages

    def overdue(self) -> list[FrameItem]:
        """End the tasks whose preparation takes too long."""
        messages: list[FrameItem] = []
        for job in self._preparation.overdue():
            logger.error(
                "preparation too slow",
                extra={"job": job.label, "limit_s": job.limit_s, "action": "its tasks fail"},
            )
            for key, outcome in self._results(job):
                messages += self._settle(key, outcome, [])
        return messages

    def _results(self, job: PreparationJob) -> list[tuple[TaskKey, Outcome]]:
        """Return the result of each task of a job, except the cancelled ones."""
        keys = self._keys_of(job)
        for key in keys:
            del self._preparing[key]
        found = job.outcome
        if isinstance(found, dict):
            return [(key, found[key]) for key in keys]
        if isinstance(found, Overrun):
            what = f"This request takes more than {job.limit_s:.1f} s to be prepared"
            return [(key, InvalidRequest(what)) for key in keys]
        error = found if isinstance(found, Exception) else RuntimeError(repr(found))
        return [(key, error) for key in keys]

    def _settle(self, key: TaskKey, outcome: Outcome, ready: list[EngineTask]) -> list[FrameItem]:
        if isinstance(outcome, Prepared):
            self.running.add(key, outcome.parser)
            ready.append(outcome.task)
            return []
        if isinstance(outcome, m.Terminal):
            return [Envelope(key, outcome)]
        if isinstance(outcome, MediaInput | LongInputs):
            assert self._embeddings is not None
            try:
                if isinstance(outcome, MediaInput):
                    self._embeddings.open_media(key, outcome)
                else:
                    self._embeddings.open(key, outcome)
            except TaskError as error:
                outcome = error
            else:
                self.running.add(key)
                return []
        if isinstance(outcome, TaskError):
            return [failed(key, outcome)]
        return [self._faulty(key, outcome)]

    # ---- out ----------------------------------------------------------------------------------

    def _parser_failed(self, key: TaskKey, error: Exception) -> Envelope:
        """End a task whose answer cannot be parsed."""
        if key in self.running:
            self.running.drop(key)
            self._abort(key)
        return self._faulty(key, error)

    # -------------------------------------------------------------------------------------------

    def _abort(self, key: TaskKey) -> None:
        assert self._engine is not None
        if self._embeddings is not None:
            self._embeddings.drop(key)
        if self._side is not None:
            self._side.cancel(key)
        self._engine.submit(Abort(key))

    def _faulty(self, key: TaskKey, error: Exception) -> Envelope:
        """End a task because of a bug of this program."""
        self.n_faults += 1
        return failed(key, internal_error(key, error))


def end_reasoning(engine: Engine, key: TaskKey, message: s.EndReasoning) -> EngineJob:
    """Return the command that ends a task's reasoning; the engine's thread owns the samplers."""

    def work() -> s.ReasoningEnded:
        runs = [slot.run for slot in engine.slots if slot.run is not None]
        own = [run for run in runs if run.task.key.connection == key.connection]
        found = [run for run in own if run.task.key.id == message.target]
        for run in found:
            run.sampler.end_reasoning()
        return s.ReasoningEnded(is_running=bool(found))

    return EngineJob(key, work)


def _cancelled(key: TaskKey) -> Envelope:
    """Make the terminal message of a task that was cancelled before it ran."""
    return Envelope(key, m.Done(finish=m.Finish.CANCELLED))
