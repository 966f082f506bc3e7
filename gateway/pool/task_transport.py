"""Carries messages between workers and streams, and performs what the dispatcher decides.

It owns the streams of all tasks that clients wait for, and counts and logs how each of them ends.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Sequence

from gateway.http.errors import BROKEN
from gateway.metrics.metrics import Metrics
from gateway.pool.dispatch.actions import Action, Assign, CancelTask, Deliver, Ejected, Fail
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.model_settings import ORDER_ID, ModelSettings
from gateway.pool.network.connections import WorkerConnections
from gateway.pool.network.worker_connection import WorkerConnection
from gateway.pool.recovery.quarantine import SETTLE_S
from gateway.pool.stream import TaskStream
from gateway.pool.task import TaskSpec
from protocol.config.config import GatewayConfig
from protocol.errors import ErrorCode, TaskError, shutting_down
from protocol.wire import messages as m
from protocol.wire.cached import Cached
from protocol.wire.messages import Envelope, FrameItem, TaskKey
from protocol.wire.sharing import Recall, Returned, SettingsTold

logger = logging.getLogger(__name__)


class TaskTransport:
    """The `Owner` of the worker connections, and the way from the pool to its workers."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        metrics: Metrics,
        settings: ModelSettings,
        config: GatewayConfig,
        gateway: str,
    ) -> None:
        """`gateway` is the id of this process."""
        self._dispatcher = dispatcher
        self._settings = settings
        self._metrics = metrics
        self._peers = WorkerConnections(self, config, gateway, metrics.handshake_failed)
        self._streams: dict[int, TaskStream] = {}
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        return f"<TaskTransport streams={len(self._streams)} {self._peers!r}>"

    def open(self, endpoints: Sequence[str]) -> None:
        """Bind the endpoints for workers; raises `ConfigError`."""
        self._peers.open(endpoints)

    @property
    def connections(self) -> WorkerConnections:
        """The connections of all workers."""
        return self._peers

    def close(self) -> None:
        """Fail the remaining tasks and drop every connection."""
        for stream in list(self._streams.values()):
            stream.fail(shutting_down())
            self._end(stream, ErrorCode.UNAVAILABLE)
        self._peers.close()

    async def drained(self) -> None:
        """Wait until every task has ended."""
        while self._streams:
            self._idle.clear()
            await self._idle.wait()

    def sweep(self, now: float) -> None:
        """Lose silent workers and fail the tasks that waited too long."""
        self._peers.sweep(now)
        self._perform(self._dispatcher.expire(now))
        for key, order in self._settings.due():
            self._peers.post(key, order)
        if self._dispatcher.connected.n_shared:
            for key, demand in self._dispatcher.demand.changed(now):
                self._peers.post(key, demand)

    def _expire(self) -> None:
        self._perform(self._dispatcher.expire(self._now()) if self._streams else ())

    def tell(self, key: str, message: m.Message) -> None:
        """Send a worker a message that belongs to no task."""
        self._peers.post(key, message)

    def abandon(self, model: str) -> None:
        """Fail the tasks that wait for a model that was unloaded."""
        self._perform(self._dispatcher.abandon(model))

    def submit(self, request: m.TaskMessage, spec: TaskSpec) -> TaskStream:
        """Open the stream of a task; raises `TaskError` if the dispatcher refuses it."""
        actions = self._dispatcher.submit(spec, self._now())
        stream = self._streams[spec.task_id] = TaskStream(
            self._dispatcher.tasks[spec.task_id],
            request,
            latencies=self._metrics.of_model(spec.model),
            on_close=self._abandon,
        )
        self._perform(actions)
        return stream

    def _abandon(self, stream: TaskStream) -> None:
        self._perform(self._dispatcher.cancel(stream.task_id))
        self._end(stream, "cancelled")

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            try:
                self._act(action)
            except Exception:
                self._give_up(action)
        if self._dispatcher.connected.n_shared:
            for key, demand in self._dispatcher.demand.crossed(self._now()):
                self._peers.post(key, demand)

    def _act(self, action: Action) -> None:
        match action:
            case Assign():
                self._send_task(action)
            case CancelTask(worker, task_id, attempt):
                self._peers.post(worker, Envelope(TaskKey(task_id, attempt), m.Cancel()))
            case Deliver(envelope):
                self._deliver(self._streams[envelope.task.id], envelope.payload)
            case Ejected(worker):
                name, what = self._peers.get(worker).name, "it gets one task at a time"
                logger.warning("worker ejected", extra={"worker": name, "action": what})
            case Fail(task_id, error):
                stream = self._streams[task_id]
                stream.fail(error)
                self._end(stream, error.code)

    def _give_up(self, action: Action) -> None:
        """End the task of an action that raised, and give its credit back: it was not sent."""
        if isinstance(action, Ejected):
            self.failed("action")
            return
        task_id = action.envelope.task.id if isinstance(action, Deliver) else action.task_id
        self.failed("action", task_id)
        self._break(task_id)
        if isinstance(action, Assign):
            failed = m.Failed(code=ErrorCode.INTERNAL, message=BROKEN.message)
            lost = Envelope(TaskKey(task_id, action.attempt), failed)
            self._perform(self._dispatcher.ended(action.worker, lost, self._now()))

    def _break(self, task_id: int) -> None:
        """End a task whose message or action raised; its worker is told to stop."""
        stream = self._streams.get(task_id)
        if stream is not None:
            stream.fail(BROKEN)
            cancels = self._dispatcher.cancel(task_id)
            self._end(stream, ErrorCode.INTERNAL)
            self._perform(cancels)

    def _send_task(self, action: Assign) -> None:
        stream = self._streams[action.task_id]
        task = stream.task
        request = stream.request
        if action.attempt:
            request = stream.go_on()
            self._metrics.moved(task.spec.model, task.cause, has_begun=task.answer.has_begun)
        else:
            stream.latencies.queue.observe(task.queued_s)
        if isinstance(request, m.Generate):
            self._metrics.routed(task.spec.model, task.route)
        lease = TaskKey(action.task_id, action.attempt)
        self._peers.post(action.worker, Envelope(lease, request, action.slot))
        self._tell_demand(action.worker)

    def _tell_demand(self, key: str) -> None:
        """Tell a shared worker what waits for it, in the frame that goes there anyway."""
        worker = self._dispatcher.workers.get(key)
        if worker is not None and worker.is_shared:
            demand = self._dispatcher.demand.of(worker, self._now())
            if demand is not None:
                self._peers.post(key, demand)

    def _deliver(self, stream: TaskStream, message: m.TaskMessage) -> None:
        slots, worker = self._dispatcher.slots, stream.task.worker_name
        finish = "ok"
        match message:
            case m.Done(slot=slot):
                message = dataclasses.replace(message, slot=slots.global_id(worker, slot))
                finish = message.finish
            case m.Failed(code=code):
                finish = code
        stream.push(message)
        self._end(stream, finish)

    def _end(self, stream: TaskStream, finish: str) -> None:
        task = stream.task
        del self._streams[task.task_id]
        if not self._streams:
            self._idle.set()
        if not isinstance(stream.request, m.Generate):
            return
        self._metrics.task_ended(task.spec.model, finish)
        stream.log_end(finish, self._dispatcher.slots.global_id(task.worker_name, task.slot))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def joined(self, peer: WorkerConnection) -> None:
        """Take in a worker that said `Hello`."""
        self._dispatcher.worker_hello(peer.key, peer.name, peer.model)
        logger.info(
            "worker joined", extra={"worker": peer.name, "model": peer.model, "epoch": peer.epoch}
        )

    def lost(self, peer: WorkerConnection, reason: str, *, died: bool) -> None:
        """Move or fail the tasks of a connection that is lost."""
        self._settings.left(peer.key)
        actions = self._dispatcher.worker_lost(peer.key, self._now(), died=died)
        if died:
            self._metrics.worker_lost(peer.name, peer.model)
            asyncio.get_running_loop().call_later(1.1 * SETTLE_S, self._expire)
        level = logging.WARNING if died else logging.INFO
        logger.log(
            level,
            "worker lost",
            extra={
                "worker": peer.name,
                "model": peer.model,
                "cause": reason,
                "action": "its tasks go on at other workers" if died else None,
            },
        )
        self._perform(actions)

    def dropped(self, n: int) -> None:
        """Count messages that belong to no task."""
        self._metrics.dropped(n)

    def received(self, peer: WorkerConnection, items: Sequence[FrameItem], now: float) -> None:
        """Take the messages of one frame: mostly one delta for each busy slot."""
        streams, key = self._streams, peer.key
        for item in items:
            try:
                if type(item) is Envelope and type(item.payload) is m.Delta:
                    lease = item.task
                    stream = streams.get(lease.id)
                    # `Task.is_at` without its call, for each token of the pool.
                    if (
                        stream is None
                        or (task := stream.task).attempt != lease.attempt
                        or task.worker != key
                    ):
                        self._drop(key, lease)
                    else:
                        stream.push_delta(item.payload, now)
                        if not task.is_read:
                            self._perform(self._dispatcher.prompt_read(key, lease, now))
                else:
                    self._receive(peer, item, now)
            except Exception:
                self._blame(peer, item)

    def _blame(self, peer: WorkerConnection, item: FrameItem) -> None:
        """End the task whose message raised an exception, if this worker still has it."""
        task_id = item.task.id if isinstance(item, Envelope) else -1
        self.failed("message", task_id)
        self._break_of(peer, task_id)

    def _unreadable(self, peer: WorkerConnection, task_id: int, message: m.Malformed) -> None:
        """End the task of a message that could not be read."""
        logger.error(
            "message unreadable",
            extra={
                "worker": peer.name,
                "task": task_id,
                "cause": message.reason,
                "action": "the task fails",
            },
        )
        self._metrics.fault("message")
        self._break_of(peer, task_id)

    def _break_of(self, peer: WorkerConnection, task_id: int) -> None:
        stream = self._streams.get(task_id)
        if stream is not None and stream.task.worker == peer.key:
            self._break(task_id)

    def refused(self, peer: WorkerConnection, item: FrameItem, error: TaskError) -> None:
        """End the task of a message that could not be sent; its credit comes back."""
        task_id = item.task.id if isinstance(item, Envelope) else -1
        logger.warning(
            "message not sent",
            extra={
                "worker": peer.name,
                "task": task_id if task_id >= 0 else None,
                "cause": error.message,
                "action": "the task fails" if task_id >= 0 else None,
            },
        )
        if isinstance(item, Envelope):
            failed = m.Failed(code=error.code, message=error.message)
            self._receive(peer, Envelope(item.task, failed), self._now())

    def failed(self, place: str, task_id: int = -1) -> None:
        """Log and count the exception that is being handled."""
        logger.exception(
            "unexpected exception",
            extra={
                "place": place,
                "task": task_id if task_id >= 0 else None,
                "action": "the task fails" if task_id >= 0 else "the pool goes on",
            },
        )
        self._metrics.fault(place)

    def _receive(self, peer: WorkerConnection, item: FrameItem, now: float) -> None:
        match item:
            case Envelope(lease, m.Terminal() as end) if lease.id == ORDER_ID:
                if isinstance(end, m.Failed):
                    logger.error(
                        "setting not applied", extra={"worker": peer.name, "cause": end.message}
                    )
            case Envelope(lease, m.Terminal()):
                if self._dispatcher.book.find(peer.key, lease) is None:
                    self._drop(peer.key, lease)
                self._perform(self._dispatcher.ended(peer.key, item, now))
            case Envelope(lease, m.Malformed() as malformed):
                self._unreadable(peer, lease.id, malformed)
            case Envelope(_, m.Started() | m.Progress()):
                self._advance(peer, item, now)
            case m.Ready():
                self._open(peer, item, now)
            case m.Message():
                self._note(peer, item)

    def _note(self, peer: WorkerConnection, message: m.Message) -> None:
        """Take in what a worker reports of itself."""
        match message:
            case Cached():
                self._dispatcher.cached(peer.key, message)
            case m.Admitted():
                logger.info("worker admitted", extra={"worker": peer.name, "model": peer.model})
                self._perform(self._dispatcher.worker_admitted(peer.key, self._now()))
            case m.Draining():
                logger.info("worker draining", extra={"worker": peer.name, "model": peer.model})
                self._perform(self._dispatcher.worker_leaves(peer.key, self._now()))
            case Recall(n=n):
                n_unused = self._dispatcher.workers[peer.key].give_back(n)
                self._peers.post(peer.key, Returned(n=n_unused))
                self._tell_demand(peer.key)
            case SettingsTold():
                self._settings.told(peer.key, message)
            case m.Heartbeat():
                now = self._now()
                peer.beat(message, now)
                self._perform(self._dispatcher.worker_shares(peer.key, message, now))
                self._dispatcher.connected.sleeps(peer.key, message.is_sleeping)
                self._metrics.beat(peer.name, peer.model, peer.epoch, message.stats)

    def _open(self, peer: WorkerConnection, ready: m.Ready, now: float) -> None:
        card = ready.card
        self._peers.post(peer.key, m.Opened())
        for order in self._settings.joined(peer.key, card.name):
            self._peers.post(peer.key, order)
        opened = self._dispatcher.worker_ready(
            peer.key, card, now, is_held=ready.is_held, granted=ready.granted
        )
        self._perform(opened)
        logger.info(
            "worker ready",
            extra={"worker": peer.name, "model": card.name, "n_slots": card.n_slots},
        )

    def _advance(self, peer: WorkerConnection, envelope: Envelope, now: float) -> None:
        lease, message, _ = envelope
        if isinstance(message, m.Started):
            is_wanted = self._dispatcher.started(peer.key, envelope, now)
        else:
            is_wanted = self._dispatcher.progressed(peer.key, lease)
        if not is_wanted:
            self._drop(peer.key, lease)
            return
        stream = self._streams[lease.id]
        answer = stream.answer
        if isinstance(message, m.Started):
            task = stream.task
            slot = self._dispatcher.slots.global_id(peer.name, message.slot)
            message = dataclasses.replace(message, slot=slot)
            self._metrics.reused(task.spec.model, expected=task.n_expected, found=task.n_cached)
            if task.n_begun:
                self._metrics.read_again(task.spec.model, message.n_reread)
        # Of a second worker a client hears nothing but the rest of the answer.
        if answer.told_attempt in (-1, lease.attempt):
            answer.told_attempt = lease.attempt
            stream.push(message)

    def _drop(self, key: str, lease: TaskKey) -> None:
        """Count a message that belongs to no task, unless its task was given up a moment ago."""
        if not self._dispatcher.was_given_up(key, lease):
            self._metrics.dropped(1)
