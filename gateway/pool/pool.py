"""All workers as the HTTP side sees them: submit a task, read its stream, look at the pool.

It puts dispatcher, transport and worker calls together and owns the clock of the queue and of
liveness. It knows nothing of HTTP, and does not decide which worker runs what.
"""

import asyncio
import dataclasses
import itertools
import secrets
import time
from collections.abc import KeysView, Mapping, Sequence

from gateway.keys.api_key import NO_LIMITS
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import WorkerView
from gateway.pool import status
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.dispatch.slot_map import ExpectedWorker
from gateway.pool.model_settings import ModelSettings, Scales
from gateway.pool.recovery.quarantine import SETTLE_S
from gateway.pool.recovery.suspect import Fingerprint, QuarantineView
from gateway.pool.requests.book import RequestBook
from gateway.pool.requests.record import RequestRecord
from gateway.pool.routing.block_hashes import Prefix
from gateway.pool.routing.origin import Origin
from gateway.pool.routing.prompt_length import guess_tokens
from gateway.pool.status import Health, ModelState
from gateway.pool.stream import TaskStream
from gateway.pool.task import TaskSpec, TaskState
from gateway.pool.task_transport import TaskTransport
from gateway.pool.tenants.allowances import Allowances
from gateway.pool.tenants.queue_limits import QueuePlace
from gateway.pool.tenants.tenant_turns import TurnsElsewhere
from gateway.pool.watch.activity import Activity, activity
from gateway.pool.worker_calls import WorkerCalls
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError, ErrorCode, InvalidRequest, TaskError
from protocol.wire import facts
from protocol.wire import messages as m
from protocol.wire.side_tasks import Embed, Rerank, SlotAction

__all__ = ["Health", "ModelState", "Pool"]

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
        self._dispatcher = Dispatcher(
            queue_size=config.queue_size,
            queue_timeout_s=config.queue_timeout_s,
            settle_s=SETTLE_S,
            on_settled=self.requests.settled,
        )
        gateway = secrets.token_hex(8)
        self._settings = ModelSettings(gateway)
        self._transport = TaskTransport(
            self._dispatcher,
            metrics,
            self._settings,
            config,
            gateway,
        )
        self.events = self._transport.events
        # Not from 0: workers may still send messages for tasks of an earlier gateway process.
        self._ids = itertools.count(time.time_ns() // 1_000_000 % _ID_CYCLE)
        self._calls = WorkerCalls(
            self._dispatcher,
            self._settings,
            self._transport.submit,
            lambda: next(self._ids),
            load_limit_s=config.timeout_s,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._no_worker_since = 0.0

    def __repr__(self) -> str:
        return f"<Pool {self._dispatcher!r}>"

    async def start(self, *, joins: bool = False) -> None:
        """Open the endpoints for workers; raises `ConfigError` that names the one at fault.

        With `joins` another gateway of this pool may be open there.
        """
        if not self._config.bind:
            raise ConfigError("gateway.bind: no endpoint for workers")
        self._transport.open(self._config.bind, joins=joins)
        self._metrics.loop_lag.open()
        self._no_worker_since = self._now()
        self._tick()

    def step_aside(self) -> None:
        """Let the workers dial another process that has bound the endpoints; keep serving."""
        self._transport.connections.step_aside()

    def step_back(self) -> None:
        """Take the endpoints again; raises `ConfigError`."""
        self._transport.connections.step_back()

    async def close(self) -> None:
        """End everything at once."""
        self._metrics.loop_lag.close()
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()
        self.requests.close()

    def submit(
        self,
        task: m.TaskMessage,
        *,
        model: str,
        origin: Origin | None = None,
        is_whole: bool = False,
    ) -> TaskStream:
        """Give a task to a worker or to the queue; raises `TaskError` if neither takes it.

        With `is_whole` the client sees nothing of the answer before all of it is there. The request
        of `origin` pays for it; without one it is the gateway's own.
        """
        origin = origin or Origin()
        spec = self._spec(task, model, origin, is_whole=is_whole)
        if isinstance(task, m.Generate):
            task = dataclasses.replace(task, chain=spec.prefix.chain)
        return self._submit(task, spec, origin.record)

    def _spec(self, task: m.TaskMessage, model: str, origin: Origin, *, is_whole: bool) -> TaskSpec:
        name, slot, prefix = "", -1, Prefix()
        if isinstance(task, m.Generate):
            prefix, n_tokens = origin.prompt(task, model)
            if task.params.id_slot >= 0:
                name, slot = self._dispatcher.slots.locate(model, task.params.id_slot)
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
            start_within_s=origin.urgency.start_s,
            n_answer=_answer_limit(task),
            n_tokens=n_tokens,
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
            return self._transport.submit(task, spec)
        if isinstance(task, m.ClientTask):
            task = dataclasses.replace(task, request_id=record.request_id)
        self.requests.expect(record, spec.task_id)
        try:
            stream = self._transport.submit(task, spec)
        except BaseException:
            self.requests.refused(spec.task_id)
            raise
        self.requests.submitted(record, stream.task)
        return stream

    def places(self) -> dict[int, int]:
        """Return the places of tasks that wait, by their ids; 1 is next. Of many the first ones."""
        return self._dispatcher.queue.places()

    @property
    def allowances(self) -> Allowances:
        """What keys have used of their limits."""
        return self._dispatcher.allowances

    def turns(self) -> Mapping[str, int]:
        """Count the tasks of each tenant whose number of tasks is limited."""
        return dict(self._dispatcher.queue.turns.n_tasks)

    def share_turns(self, elsewhere: Mapping[str, TurnsElsewhere]) -> None:
        """Store the tasks of such tenants at other gateways; it takes effect at the next tick."""
        self._dispatcher.queue.share_turns(elsewhere)

    def place(self, task_id: int) -> QueuePlace | None:
        """Return the place in the queue of a task; None if it does not wait."""
        task = self._dispatcher.tasks.get(task_id)
        is_waiting = task is not None and task.state is TaskState.WAITING
        return self._dispatcher.limits.place(task) if task is not None and is_waiting else None

    def overloaded(self, model: str, message: str) -> TaskError:
        """Build the refusal of a request for which no slot becomes free in time."""
        return self._dispatcher.limits.overloaded(model, message)

    def model_of_slot(self, slot_id: int) -> str:
        """Return the model of a slot; empty if there is no such slot."""
        owner = self._dispatcher.slots.owner(slot_id)
        return owner[1] if owner is not None else ""

    def act_on_slot(
        self, task: SlotAction, slot_id: int, *, tenant: str, record: RequestRecord | None = None
    ) -> TaskStream:
        """Give an action to the worker that has the slot now; raises `TaskError`."""
        owner = self._dispatcher.slots.owner(slot_id)
        if owner is None:
            raise InvalidRequest("Invalid slot ID", param="id_slot")
        name, model, slot = owner
        if not any(one.is_ready and one.name == name for one in self._dispatcher.workers.values()):
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

    async def end_reasoning(self, stream: TaskStream) -> bool:
        """End the reasoning of a running task; false if the task has just ended."""
        return await self._calls.end_reasoning(stream)

    async def set_lora(self, model: str, scales: Scales) -> None:
        """Set the scales of a model's adapters in every worker, also in those to come."""
        await self._calls.set_lora(model, scales)

    async def set_system_prompt(self, card: facts.ModelCard, system: facts.SystemPrompt) -> None:
        """Set the system prompt of a model in its workers; raises `TaskError` if it is too long."""
        await self._calls.set_system_prompt(card, system)

    def system_prompt(self, card: facts.ModelCard) -> facts.SystemPrompt:
        """Return the system prompt that holds for a model."""
        return self._settings.system_prompt(card)

    def card(self, model: str | None) -> facts.ModelCard:
        """Find the model that a request means; raises `TaskError`."""
        return status.resolve(self._dispatcher, model)

    def cards(self) -> tuple[facts.ModelCard, ...]:
        """List the models that are or were ready."""
        return tuple(self._dispatcher.cards.values())

    @property
    def known_models(self) -> KeysView[str]:
        """Names of the models that are or were ready."""
        return self._dispatcher.cards.keys()

    def health(self) -> Health:
        """Return the pool's health."""
        given_up = self._now() - self._no_worker_since > _NO_WORKER_S
        return status.health(self._dispatcher, given_up=given_up)

    def state(self, card: facts.ModelCard) -> ModelState:
        """Return the state of a model."""
        return status.model_state(self._dispatcher, card.name)

    def n_slots(self, card: facts.ModelCard) -> int:
        """Count the slots of a model."""
        return status.count_slots(self._dispatcher, card.name)

    def workers(self) -> tuple[WorkerView, ...]:
        """List the connected workers, for the metrics."""
        return tuple(map(status.view, self._dispatcher.workers.values()))

    def queue_depths(self) -> Mapping[str, int]:
        """Count the tasks of each model that have no slot yet, for the metrics."""
        return status.deferred(self._dispatcher)

    def tasks_of_keys(self) -> Mapping[str, tuple[int, int]]:
        """Count the waiting and the running tasks of each API key, for the metrics."""
        return status.tasks_of_keys(self._dispatcher)

    def in_hand(self) -> tuple[int, int]:
        """Count the tasks of this gateway that run in workers, and those that wait."""
        return status.in_hand(self._dispatcher)

    def n_quarantined(self) -> int:
        """Count the requests that are refused because workers died with them, for the metrics."""
        return len(self.quarantined())

    def queue_limit(self, card: facts.ModelCard) -> int:
        """Return how many tasks of a model may wait."""
        return self._dispatcher.limits.limit(card.name)

    async def slots(
        self, model: str | None = None
    ) -> tuple[tuple[facts.SlotReport, facts.ModelCard], ...]:
        """Return what every slot does, ordered by its id; `model` None means all models."""
        return await self._calls.slots(model)

    def activity(self) -> Activity:
        """Return what the tasks of this gateway do; asks no worker."""
        return activity(self._dispatcher)

    def tenant_of(self, task_id: int) -> str | None:
        """Return the tenant of a running task; None if it has ended."""
        return status.tenant_of(self._dispatcher, task_id)

    def quarantined(self) -> tuple[QuarantineView, ...]:
        """List the requests that are refused because workers died with them."""
        return self._dispatcher.quarantine.views(self._now())

    def clear_quarantine(self, fingerprint: str = "") -> int:
        """Let refused requests in again: one, or all; return how many."""
        return self._dispatcher.quarantine.release(fingerprint)

    async def complete(self, worker: str, prompt: str, n_predict: int) -> str:
        """Ask one worker for its greedy answer to a prompt, also if it is held."""
        return await self._calls.complete(worker, prompt, n_predict)

    def expect(self, workers: Sequence[ExpectedWorker]) -> None:
        """Keep the slot ids of workers that are configured, also while they are down."""
        self._dispatcher.slots.expect(workers)

    def has_worker(self, name: str) -> bool:
        """Whether a worker of this name is connected."""
        return any(one.name == name for one in self._dispatcher.workers.values())

    def drain_worker(self, name: str) -> None:
        """Tell a worker to finish, or to give its tasks to others, and to leave."""
        for one in self._dispatcher.workers.values():
            if one.name == name:
                self._transport.post(one.key, m.Drain())

    def forget_worker(self, name: str) -> None:
        """Free the slot ids of a worker that will not come back, unless it is connected."""
        if self._dispatcher.connected.forget(name):
            self._metrics.forget_worker(name)

    def abandon(self, model: str) -> None:
        """Fail what waits for a model that was unloaded."""
        self._transport.abandon(model)

    @property
    def has_tasks(self) -> bool:
        """Whether a client waits for a task."""
        return bool(self._transport.streams.by_id)

    def drain(self) -> None:
        """Take nothing new; what runs and waits is still served."""
        self._dispatcher.drain()

    async def drained(self) -> None:
        """Wait until every task has ended."""
        await self._transport.streams.drained()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        shortest = min(self._config.heartbeat_s, self._config.queue_timeout_s)
        # Scheduled first: a fault in this tick must not stop the clock.
        self._timer = loop.call_later(min(_MAX_TICK_S, shortest / 2), self._tick)
        try:
            self._transport.sweep(loop.time())
        except Exception:
            self._transport.failed("tick")
        if self._dispatcher.workers:
            self._no_worker_since = loop.time()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _answer_limit(task: m.TaskMessage) -> int | None:
    """Return the most tokens of a task's answer; None if the request does not say."""
    if not isinstance(task, m.Generate):
        return 0
    return task.params.n_predict if task.params.n_predict >= 0 else None
