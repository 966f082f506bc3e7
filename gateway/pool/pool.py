"""The gateway's view of all workers, as the HTTP side uses it.

It puts dispatcher, connections and courier together and owns the clock of the queue and of
liveness. It knows nothing of HTTP, and decides nothing about who runs what.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import replace

from gateway.metrics.metrics import Metrics, WorkerView
from gateway.pool import status as overview
from gateway.pool.dispatcher import Dispatcher
from gateway.pool.model_settings import ModelSettings, Scales, system_order
from gateway.pool.routing.block_hashes import Prefix
from gateway.pool.routing.origin import Origin
from gateway.pool.status import Health, ModelState
from gateway.pool.stream import TaskStream
from gateway.pool.task import TaskSpec
from gateway.pool.task_transport import TaskTransport
from gateway.pool.workers import Worker
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError, ErrorCode, InvalidRequest, TaskError
from protocol.wire import facts
from protocol.wire import messages as m
from protocol.wire.side_tasks import (
    Embed,
    EndThoughts,
    Render,
    Rerank,
    SetLora,
    SlotAction,
    ThoughtsEnded,
)

__all__ = ["Health", "ModelState", "Pool"]

_INSPECT_LIMIT_S = 2.0
_ORDER_LIMIT_S = 10.0
_REFUSALS = (ErrorCode.INVALID_REQUEST, ErrorCode.CONTEXT_EXCEEDED, ErrorCode.NOT_SUPPORTED)
_ALONE_S = 30.0
"""A pool without any worker says for so long that it is loading: a supervisor starts new ones."""
_CHARS_PER_TOKEN = 4
_MAX_TICK_S = 0.5
_ID_CYCLE = 1_000_000_000


class Pool:
    """All workers behind one `submit`."""

    def __init__(self, config: GatewayConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._dispatcher = Dispatcher(
            queue_size=config.queue_size, queue_timeout_s=config.queue_timeout_s
        )
        self._orders = ModelSettings()
        self._courier = TaskTransport(
            self._dispatcher, metrics, self._orders, heartbeat_s=config.heartbeat_s
        )
        # Not from 0: a worker may still speak of the tasks of a gateway that was here before.
        self._ids = itertools.count(time.time_ns() // 1_000_000 % _ID_CYCLE)
        self._inspections: dict[str, asyncio.Task[m.Inspected | None]] = {}
        """Questions about slots that are under way, by worker."""
        self._timer: asyncio.TimerHandle | None = None
        self._alone_since = 0.0

    def __repr__(self) -> str:
        return f"<Pool {self._dispatcher!r}>"

    async def start(self) -> None:
        """Open the endpoints for workers; raises `ConfigError` that names the one at fault."""
        if not self._config.bind:
            raise ConfigError("gateway.bind: no endpoint for workers")
        self._courier.open(self._config.bind)
        self._metrics.loop_lag.open()
        self._alone_since = self._now()
        self._tick()

    async def close(self) -> None:
        """End everything at once."""
        self._metrics.loop_lag.close()
        if self._timer is not None:
            self._timer.cancel()
        self._courier.close()

    def submit(
        self,
        task: m.TaskMessage,
        *,
        model: str,
        tenant: str = "",
        origin: Origin | None = None,
        is_whole: bool = False,
    ) -> TaskStream:
        """Give a task to a worker or to the queue; raises `TaskError` if neither takes it.

        `is_whole` says that its client sees nothing of the answer before all of it is there.
        """
        name, slot, prefix = "", -1, Prefix()
        origin = origin or Origin(tenant=tenant)
        if isinstance(task, m.Generate):
            prefix = origin.prefix(task, model)
            if task.params.id_slot >= 0:
                name, slot = self._dispatcher.slots.locate(model, task.params.id_slot)
        return self._courier.submit(
            task,
            TaskSpec(
                task_id=next(self._ids),
                model=model,
                tenant=origin.tenant,
                n_tokens=_guess_tokens(task),
                takes_credit=isinstance(task, m.Generate),
                worker=name,
                slot=slot,
                prefix=prefix,
                session=origin.session_key(model),
                label=origin.label_key(model),
                is_whole=is_whole,
            ),
        )

    def model_of_slot(self, slot_id: int) -> str:
        """Name the model that has a slot; empty if there is no such slot."""
        owner = self._dispatcher.slots.owner(slot_id)
        return owner[1] if owner is not None else ""

    def act_on_slot(self, task: SlotAction, slot_id: int, *, tenant: str) -> TaskStream:
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
        return self._courier.submit(task, spec)

    async def end_thoughts(self, stream: TaskStream) -> bool:
        """End the thoughts of a running task; false if it has just ended."""
        worker = self._dispatcher.workers.get(stream.task.worker)
        if worker is None:
            return False
        order = EndThoughts(target=stream.task_id)
        try:
            answer = await self._ask(worker, order, _ORDER_LIMIT_S)
        except TimeoutError:
            raise TaskError(ErrorCode.UNAVAILABLE, "The worker does not answer") from None
        return isinstance(answer, ThoughtsEnded) and answer.is_running

    async def set_lora(self, model: str, scales: Scales) -> None:
        """Set the scales of a model's adapters in every worker, also in those to come."""
        self._orders.set_scales(model, scales)
        await self._tell_all(SetLora(scales=scales), model)

    async def set_system_prompt(self, card: facts.ModelCard, system: facts.SystemPrompt) -> None:
        """Set the system prompt in every worker of a model; raises `TaskError` if it is too long.

        Then all have the one that they had before.
        """
        before = self._orders.system_prompt(card)
        if system == before:
            return
        self._orders.set_system_prompt(card.name, system)
        try:
            await self._tell_all(system_order(system), card.name)
        except TaskError:
            self._orders.set_system_prompt(card.name, before)
            await self._tell_all(system_order(before), card.name)
            raise

    def system_prompt(self, card: facts.ModelCard) -> facts.SystemPrompt:
        """Return the system prompt that holds for a model."""
        return self._orders.system_prompt(card)

    def card(self, model: str | None) -> facts.ModelCard:
        """Find the model that a request means; raises `TaskError`."""
        return overview.resolve(self._dispatcher, model)

    def cards(self) -> tuple[facts.ModelCard, ...]:
        """List the models that are or were ready."""
        return tuple(self._dispatcher.cards.values())

    def health(self) -> Health:
        """Say how the pool is."""
        given_up = self._now() - self._alone_since > _ALONE_S
        return overview.health(self._dispatcher, given_up=given_up)

    def state(self, card: facts.ModelCard) -> ModelState:
        """Say how a model is."""
        return overview.model_state(self._dispatcher, card.name)

    def n_slots(self, card: facts.ModelCard) -> int:
        """Count the slots of a model."""
        return overview.count_slots(self._dispatcher, card.name)

    def workers(self) -> tuple[WorkerView, ...]:
        """List the connected workers, for the metrics."""
        return tuple(map(overview.view, self._dispatcher.workers.values()))

    def queue_depths(self) -> Mapping[str, int]:
        """Count the tasks of each model that have no slot yet, for the metrics."""
        return self._dispatcher.deferred()

    def queue_limit(self, card: facts.ModelCard) -> int:
        """Return how many tasks of a model may wait."""
        return self._dispatcher.queue_limit(card.name)

    async def slots(
        self, model: str | None = None
    ) -> tuple[tuple[facts.SlotReport, facts.ModelCard], ...]:
        """Ask the workers what their slots do; for a silent one the gateway's own count stands.

        So for one that sleeps: to look at a worker neither wakes it nor keeps it awake.
        """
        asked = [
            worker
            for worker in self._dispatcher.workers.values()
            if worker.card is not None and model in (None, worker.model)
        ]
        reports = await asyncio.gather(*map(self._report, asked))
        rows = [
            (report, worker.card)
            for worker, one in zip(asked, reports, strict=True)
            for report in one
            if worker.card is not None
        ]
        return tuple(sorted(rows, key=lambda row: row[0].id))

    def tenant_of(self, task_id: int) -> str | None:
        """Return whose task it is that runs; None if it runs no more."""
        return self._dispatcher.tenant_of(task_id)

    def abandon(self, model: str) -> None:
        """Fail what waits for a model that was unloaded."""
        self._courier.abandon(model)

    def drain(self) -> None:
        """Take nothing new; what runs and waits is still served."""
        self._dispatcher.drain()

    async def drained(self) -> None:
        """Wait until every task has ended."""
        await self._courier.drained()

    async def _report(self, worker: Worker) -> tuple[facts.SlotReport, ...]:
        answer = await self._inspect(worker)
        base = self._dispatcher.slots.base(worker.name)
        if answer is not None:
            return tuple(replace(one, id=base + one.id) for one in answer.slots)
        return overview.guess_slots(worker, base)

    async def _inspect(self, worker: Worker) -> m.Inspected | None:
        """Ask a worker that is awake, once for all who want to know at the same time."""
        if not worker.is_ready or worker.is_sleeping:
            return None
        question = self._inspections.get(worker.key)
        if question is None:
            question = asyncio.create_task(self._ask_slots(worker))
            self._inspections[worker.key] = question
            question.add_done_callback(lambda _: self._inspections.pop(worker.key))
        return await asyncio.shield(question)

    async def _ask_slots(self, worker: Worker) -> m.Inspected | None:
        try:
            answer = await self._ask(worker, m.Inspect(), _INSPECT_LIMIT_S)
        except (TimeoutError, TaskError):
            return None
        return answer if isinstance(answer, m.Inspected) else None

    async def _tell_all(self, order: m.TaskMessage, model: str) -> None:
        """Tell each ready worker; one that is lost is told again when it comes back."""
        workers = [w for w in self._dispatcher.workers.values() if w.is_ready and w.model == model]
        tellings = (self._ask(worker, order, _ORDER_LIMIT_S) for worker in workers)
        for answer in await asyncio.gather(*tellings, return_exceptions=True):
            if isinstance(answer, TaskError) and answer.code in _REFUSALS:
                raise answer

    async def _ask(self, worker: Worker, task: m.TaskMessage, limit_s: float) -> m.Terminal:
        """Ask one worker beside its slots."""
        spec = TaskSpec(
            task_id=next(self._ids), model=worker.model, takes_credit=False, worker=worker.name
        )
        stream = self._courier.submit(task, spec)
        try:
            # One that sleeps must load its model first.
            async with asyncio.timeout(self._config.timeout_s if worker.is_sleeping else limit_s):
                return await stream.result()
        finally:
            stream.close()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        shortest = min(self._config.heartbeat_s, self._config.queue_timeout_s)
        # First the next tick: a fault in this one must not stop the clock.
        self._timer = loop.call_later(min(_MAX_TICK_S, shortest / 2), self._tick)
        try:
            self._courier.sweep(loop.time())
        except Exception:
            self._courier.failed("tick")
        if self._dispatcher.workers:
            self._alone_since = loop.time()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _guess_tokens(task: m.TaskMessage) -> int:
    """Guess the length of a prompt; the fair share needs a number before a worker counts."""
    n = 0
    for part in _parts(task):
        if isinstance(part, str):
            n += max(1, len(part) // _CHARS_PER_TOKEN)
        else:
            n += len(part) if isinstance(part, tuple) else 1
    return max(1, n)


def _parts(task: m.TaskMessage) -> tuple[object, ...]:
    """List what a task has to read: texts, tokens, or tuples of tokens."""
    match task:
        case m.Generate(chat=chat) | Render(chat=chat) if chat is not None:
            return tuple(message.get("content") for message in chat.messages)
        case m.Generate(prompt=content) | m.Tokenize(content=content):
            return (content,) if isinstance(content, str) else content or ()
        case m.Detokenize(tokens=tokens):
            return (tokens,)
        case Embed(inputs=inputs):
            return inputs
        case Rerank(query=query, documents=documents):
            return tuple(query + document for document in documents)
    return ()
