"""Gives waiting tasks their slots, and frees the slots of tasks that have ended."""

from collections import deque

from protocol.errors import TaskError
from protocol.wire.facts import Usage
from protocol.wire.messages import Done, Envelope, Finish, TaskKey
from worker.engine.adapters import choose_scales
from worker.engine.backend import Backend
from worker.engine.cache.cache import PrefixCache
from worker.engine.results import SampleProcessor
from worker.engine.resume import open_sampler
from worker.engine.scheduling.admission import Admission
from worker.engine.slot import CacheNamespace, Slot, SlotTask
from worker.engine.speculation.draft import Drafter
from worker.engine.stats import EngineProgress
from worker.engine.task import EngineTask, failed


class TaskLifecycle:
    """Owns the tasks that wait for a slot; used by the engine's thread only.

    `n_busy` and `n_waiting` may be read by any thread.
    """

    def __init__(
        self,
        backend: Backend,
        cache: PrefixCache,
        admission: Admission,
        results: SampleProcessor,
        drafter: Drafter | None,
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._slots = cache.slots
        self._counters = cache.counters
        self._admission = admission
        self._results = results
        self._outbox = results.outbox
        self._drafter = drafter
        self._waiting = deque[EngineTask]()
        self._n_admitted = 0
        self.n_busy = 0
        """Slots that serve a task."""
        self.scales = tuple(adapter.scale for adapter in backend.adapters.loaded)
        """Scales of the adapters for tasks that ask for none."""

    @property
    def n_waiting(self) -> int:
        """Tasks that wait for a slot."""
        return len(self._waiting)

    def busy(self) -> list[Slot]:
        """Return the slots that serve a task."""
        return [slot for slot in self._slots if slot.run is not None]

    def add(self, *tasks: EngineTask) -> None:
        """Let tasks wait for slots."""
        self._waiting += [task for task in tasks if task.prompt]
        # An empty prompt on a model without BOS: llama-server answers with nothing, and so do we.
        self._outbox.extend(
            Envelope(task.key, Done(finish=Finish.NONE)) for task in tasks if not task.prompt
        )

    def abort(self, key: TaskKey) -> None:
        """End an attempt that waits or runs; one that has ended gets no second terminal message."""
        waiting = [task for task in self._waiting if task.key == key]
        for task in waiting:
            self._waiting.remove(task)
        if waiting:
            self._outbox.put(Envelope(key, Done(finish=Finish.CANCELLED)))
        for slot in self.busy():
            if slot.active.task.key == key:
                self._results.finish(slot, Finish.CANCELLED)
                self.release(slot)

    def abort_all(self, connection: int) -> None:
        """End the tasks of a connection without terminal messages."""
        self._waiting = deque(task for task in self._waiting if task.key.connection != connection)
        for slot in self.busy():
            if slot.active.task.key.connection == connection:
                self.release(slot)

    def admit(self, progress: EngineProgress) -> None:
        """Give waiting tasks their slots, oldest first; a task that asks for a busy slot waits."""
        for task in list(self._waiting):
            progress.begin()
            try:
                if self._admission.awaits_slot(task):
                    continue
                slot = self._admission.choose(task, self._namespace(task))
                if slot is None:
                    return
                self._waiting.remove(task)
                self._start(task, slot)
            except TaskError as error:
                self._outbox.put(failed(task.key, error))
            except Exception as error:
                self._drop(task, self._counters.fault(task.key, error))

    def _drop(self, task: EngineTask, error: TaskError) -> None:
        """End a task whose admission went wrong, however far it came."""
        if task in self._waiting:
            self._waiting.remove(task)
        usage = Usage()
        for slot in self.busy():
            if slot.active.task is task:
                usage = slot.active.usage
                self._cache.cut(slot, 0)
                self.release(slot)
        self._outbox.put(failed(task.key, error, usage))

    def _start(self, task: EngineTask, slot: Slot) -> None:
        sampler = task.sampler or open_sampler(self._backend, task)
        if (finish := self._results.end_of(slot, task)) is not None:
            self._finish_resumed(
                SlotTask.of(task, sampler, 0, order=self._n_admitted), slot, finish
            )
            return
        namespace = self._namespace(task)
        n_known = self._admission.n_known(task, namespace)
        n_alike = self._cache.n_alike(namespace, task.reading)
        n_cached = self._admission.clear(
            slot, task, namespace, is_alone=not (self.n_busy or self._waiting)
        )
        self._backend.set_sampler(slot.id, sampler)
        self._n_admitted += 1
        slot.begin(SlotTask.of(task, sampler, n_cached, order=self._n_admitted))
        self.n_busy += 1
        self._cache.checkpoints.plan(slot, n_alike)
        self._cache.report_prompt(slot)
        slot.active.account = self._counters.accounts.open(task.key)
        self._counters.reused(slot.active.account, n_cached)
        self._outbox.put(slot.started(n_known))
        self._results.progress(slot)

    def _finish_resumed(self, run: SlotTask, slot: Slot, finish: Finish) -> None:
        """End a task whose answer another worker has completed; nothing is read for it."""
        slot.begin(run)
        run.reading = []
        run.restore_times()
        self.n_busy += 1
        self._outbox.put(slot.started(0))
        self._results.finish(slot, finish)
        self.release(slot)

    def release(self, slot: Slot) -> None:
        """Free a slot; it is idle afterwards, also if keeping its tokens as cache fails."""
        key = slot.active.task.key
        self.n_busy -= 1
        self._counters.accounts.close(slot.active.account)
        try:
            self._cache.drop_part(slot)
            slot.end(self._cache.tick())
            if self._drafter is not None:
                self._drafter.learn(slot.id, slot.tokens)
            self._cache.note(slot)
            self._cache.report_read(slot)
        except Exception as error:
            self._counters.fault(key, error)

    def drop_waiting(self) -> list[TaskKey]:
        """Drop the tasks that wait for a slot, without messages; return their keys."""
        keys = [task.key for task in self._waiting]
        self._waiting.clear()
        return keys

    def _namespace(self, task: EngineTask) -> CacheNamespace:
        return choose_scales(task.params.lora, self.scales), task.salt
