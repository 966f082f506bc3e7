"""The pool of workers: submit a task, read its stream.

It puts its parts together, which the HTTP side uses directly, and owns the clock of the queue and
of liveness. It knows nothing of HTTP, and does not decide which worker runs what.
"""

import asyncio
import dataclasses
import itertools
import secrets
import time
from collections.abc import Sequence

from gateway.keys.api_key import NO_LIMITS
from gateway.metrics.metrics import Metrics
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.model_settings import ModelSettings
from gateway.pool.recovery.quarantine import SETTLE_S
from gateway.pool.requests.book import RequestBook
from gateway.pool.requests.record import RequestRecord
from gateway.pool.routing.origin import Origin
from gateway.pool.routing.prompt_length import guess_tokens
from gateway.pool.status import Health, PoolStatus
from gateway.pool.task_transport import TaskTransport
from gateway.pool.tasks.block_hashes import Prefix
from gateway.pool.tasks.spec import ALONE, TaskSpec, Together
from gateway.pool.tasks.stream import TaskStream
from gateway.pool.tasks.suspect import Fingerprint
from gateway.pool.worker_calls import WorkerCalls
from gateway.pool.workers.worker import WorkerState
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError, ErrorCode, InvalidRequest, TaskError
from protocol.process.request_ids import RequestIds
from protocol.wire import messages as m
from protocol.wire.side_tasks import Embed, Rerank, SlotAction

_NO_WORKER_S = 30.0
"""Seconds for which a pool without any worker is `loading model`, before it is `error`."""
_MAX_TICK_S = 0.5
"""Longest time between two looks at deadlines and silent workers, in seconds."""
_ID_CYCLE = 1_000_000_000
"""The first task id is the clock in milliseconds, modulo this: it repeats after 11 days."""
_LIMITED = (m.Generate, Embed, Rerank)
"""Tasks that count against the limits of a key: those that compute something."""


class Pool:
    """All workers behind one `submit`."""

    def __init__(self, config: GatewayConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self.requests = RequestBook()
        """The HTTP requests whose tasks these are."""
        self.request_ids = RequestIds()
        """Adds their ids to log lines about tasks."""
        self.dispatcher = Dispatcher(
            queue_size=config.queue_size,
            queue_timeout_s=config.queue_timeout_s,
            settle_s=SETTLE_S,
            on_settled=self.requests.settled,
        )
        self.status = PoolStatus(self.dispatcher)
        gateway = secrets.token_hex(8)
        self.settings = ModelSettings(gateway)
        self.transport = TaskTransport(
            self.dispatcher,
            metrics,
            self.settings,
            config,
            gateway,
        )
        self.events = self.transport.events
        # Not from 0: workers may still send messages for tasks of an earlier gateway process.
        self._ids = itertools.count(time.time_ns() // 1_000_000 % _ID_CYCLE)
        self.calls = WorkerCalls(
            self.dispatcher,
            self.settings,
            self.transport.submit,
            lambda: next(self._ids),
            load_limit_s=config.timeout_s,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._no_worker_since = 0.0
        self._is_retired = False

    def __repr__(self) -> str:
        return f"<Pool {self.dispatcher!r}>"

    async def start(self, *, joins: bool = False) -> None:
        """Open the endpoints for workers; raises `ConfigError` that names the one at fault.

        With `joins` another gateway of this pool may be open there.
        """
        if not self._config.bind:
            raise ConfigError("gateway.bind: no endpoint for workers")
        self.transport.connections.open(self._config.bind, joins=joins)
        self._metrics.loop_lag.open()
        self._no_worker_since = self._now()
        self._tick()

    async def close(self) -> None:
        """End everything at once but the book of requests, whose answers are still written."""
        self._metrics.loop_lag.close()
        if self._timer is not None:
            self._timer.cancel()
        self.transport.close()

    def retire(self) -> None:
        """Note that another gateway has taken over: workers that start from now on dial only it."""
        self._is_retired = True

    def submit(
        self,
        task: m.TaskMessage,
        *,
        model: str,
        origin: Origin | None = None,
        is_whole: bool = False,
        together: Together = ALONE,
    ) -> TaskStream:
        """Give a task to a worker or to the queue; raises `TaskError` if neither takes it.

        With `is_whole` the client sees nothing of the answer before all of it is there. The request
        of `origin` pays for it; without one it is the gateway's own. `together` are all tasks of
        that request.
        """
        origin = origin or Origin()
        spec = self._spec(task, model, origin, is_whole=is_whole)
        if together.n_tasks > 1:
            spec = dataclasses.replace(spec, together=together)
        if isinstance(task, m.Generate):
            task = dataclasses.replace(task, chain=spec.prefix.chain)
        return self._submit(task, spec, origin.record)

    def together(self, tasks: Sequence[m.TaskMessage], model: str, origin: Origin) -> Together:
        """Measure the tasks of one request before they are submitted."""
        if len(tasks) == 1 or not origin.limits.counts_tokens:
            return ALONE
        n_tokens = [
            origin.prompt(task, model)[1] if isinstance(task, m.Generate) else guess_tokens(task)
            for task in tasks
        ]
        return Together(len(tasks), sum(n_tokens))

    def _spec(self, task: m.TaskMessage, model: str, origin: Origin, *, is_whole: bool) -> TaskSpec:
        name, slot, prefix = "", -1, Prefix()
        if isinstance(task, m.Generate):
            prefix, n_tokens = origin.prompt(task, model)
            if task.params.id_slot >= 0:
                name, slot = self.dispatcher.slots.locate(model, task.params.id_slot)
        else:
            n_tokens = guess_tokens(task)
        return TaskSpec(
            task_id=next(self._ids),
            model=model,
            tenant=origin.tenant,
            key=origin.key,
            trace=origin.trace,
            limits=origin.limits if isinstance(task, _LIMITED) else NO_LIMITS,
            priority=origin.urgency.priority,
            start_within_s=origin.start_within_s,
            n_answer=_answer_limit(task),
            n_tokens=n_tokens,
            has_media=isinstance(task, m.Generate) and bool(task.media),
            takes_credit=isinstance(task, m.Generate),
            worker=name,
            slot=slot,
            prefix=prefix,
            session=origin.session_key(model),
            label=origin.label_key(model),
            is_whole=is_whole,
            continues=self._config.continues,
            fingerprint=Fingerprint(task),
        )

    def _submit(
        self, task: m.TaskMessage, spec: TaskSpec, record: RequestRecord | None
    ) -> TaskStream:
        """Submit a task that a request pays for."""
        if record is None:
            return self.transport.submit(task, spec)
        if isinstance(task, m.ClientTask):
            task = dataclasses.replace(task, request_id=record.request_id)
        self.requests.expect(record, spec.task_id)
        self.request_ids.note(spec.task_id, record.request_id)
        try:
            stream = self.transport.submit(task, spec)
        except BaseException:
            self.requests.refused(spec.task_id)
            raise
        self.requests.submitted(record, stream.task)
        return stream

    def act_on_slot(
        self,
        task: SlotAction,
        slot_id: int,
        *,
        model: str,
        tenant: str,
        record: RequestRecord | None = None,
    ) -> TaskStream:
        """Give an action to the worker that has the slot of a model; raises `TaskError`."""
        owner = self.dispatcher.slots.numbered(model, slot_id)
        if owner is None:
            raise InvalidRequest("Invalid slot ID", param="id_slot")
        name, slot = owner
        if not any(
            worker.is_ready and worker.name == name for worker in self.dispatcher.workers.values()
        ):
            raise TaskError(ErrorCode.UNAVAILABLE, f"The worker of slot {slot_id} is not ready")
        spec = TaskSpec(
            task_id=next(self._ids),
            model=model,
            tenant=tenant,
            takes_credit=False,
            worker=name,
            slot=slot,
            is_bound=True,
        )
        return self._submit(task, spec, record)

    def health(self) -> Health:
        """Return the pool's health."""
        given_up = self._now() - self._no_worker_since > _NO_WORKER_S
        return self.status.health(given_up=given_up)

    def drain_worker(self, name: str) -> None:
        """Tell a worker to finish, or to give its tasks to others, and to leave."""
        self.transport.connections.drain(name)

    def forget_worker(self, name: str) -> None:
        """Free the slot ids of a worker that will not come back, unless it is connected."""
        was_forgotten, actions = self.dispatcher.worker_forgotten(name, self._now())
        if was_forgotten:
            self._metrics.forget_worker(name)
        self.transport.perform(actions)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        shortest = min(self._config.heartbeat_s, self._config.queue_timeout_s)
        # Scheduled first: a fault in this tick must not stop the clock.
        self._timer = loop.call_later(min(_MAX_TICK_S, shortest / 2), self._tick)
        try:
            self.transport.sweep(loop.time())
            if self._is_retired:
                self._refuse_without_worker()
        except Exception:
            self.transport.inbox.failed("tick")
        if self.dispatcher.workers:
            self._no_worker_since = loop.time()

    def _refuse_without_worker(self) -> None:
        """Fail the tasks for which no worker is left: asked again, the new gateway has them."""
        workers = self.dispatcher.workers.values()
        served = {worker.model for worker in workers if worker.state is not WorkerState.LEAVING}
        for model, n_waiting in self.dispatcher.queue.depths().items():
            if n_waiting and model not in served:
                why = "is served by a new gateway: ask again"
                self.transport.perform(self.dispatcher.abandon(model, why))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _answer_limit(task: m.TaskMessage) -> int | None:
    """Return the maximum tokens of a task's answer; None if the request names no maximum."""
    if not isinstance(task, m.Generate):
        return 0
    return task.params.n_predict if task.params.n_predict >= 0 else None
