"""What comes from workers: messages of tasks go to their streams, the rest to the dispatcher."""

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import Protocol

from gateway.metrics.metrics import Metrics
from gateway.pool.dispatch.actions import Action
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.model_settings import ORDERS, ModelSettings
from gateway.pool.network.observer import Loss
from gateway.pool.network.worker_connection import BrokenConnections, WorkerConnection
from gateway.pool.plausible import (
    implausible,
    implausible_stats,
    is_answer,
    overread,
    overstated,
)
from gateway.pool.recovery.quarantine import SETTLE_S
from gateway.pool.tasks.stream import Resumed
from gateway.pool.tasks.task_streams import TaskStreams
from gateway.pool.watch.events import EventKind, PoolEvents
from gateway.pool.workers.worker import WorkerState
from protocol.errors import ErrorCode, TaskError
from protocol.wire import messages as m
from protocol.wire.cached import Cached
from protocol.wire.field_readers import MAX_REASON, ProtocolError
from protocol.wire.messages import Envelope, FrameItem, TaskKey
from protocol.wire.sharing import Recall, Returned, SettingsReport

logger = logging.getLogger(__name__)

_MOVED = "each of its tasks goes on at the next free worker, or fails with 503"
_UNTOUCHED = "it had no task"


class ActionRunner(Protocol):
    """The part of the transport that acts on messages of workers."""

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out what the dispatcher decided."""

    def break_task(self, task_id: int) -> None:
        """End a task whose message raised; its worker is told to stop."""

    def post(self, key: str, item: FrameItem) -> None:
        """Send a worker a message with this turn of the loop."""

    def send_demand(self, key: str) -> None:
        """Tell a shared worker how many tasks wait for it."""


class WorkerInbox:
    """The `ConnectionObserver` of the worker connections."""

    def __init__(
        self,
        runner: ActionRunner,
        streams: TaskStreams,
        dispatcher: Dispatcher,
        settings: ModelSettings,
        metrics: Metrics,
    ) -> None:
        self._runner = runner
        self._streams = streams
        self._dispatcher = dispatcher
        self._settings = settings
        self._metrics = metrics
        self._broken = BrokenConnections()
        self.events = PoolEvents()
        """Events of workers, for the page `/pool`."""

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _expire(self) -> None:
        has_tasks = bool(self._streams.by_id)
        self._runner.perform(self._dispatcher.expire(self._now()) if has_tasks else ())

    def joined(self, peer: WorkerConnection) -> None:
        """Take in a worker that said `Hello`."""
        if before := self._broken.back(peer):
            self._dispatcher.quarantine.survived(before)
        self._dispatcher.worker_hello(peer.key, peer.name, peer.model)
        logger.info(
            "worker joined", extra={"worker": peer.name, "model": peer.model, "epoch": peer.epoch}
        )

    def expects(self, peer: WorkerConnection) -> bool:
        """Whether a worker has a task, so that its answer may be large."""
        worker = self._dispatcher.workers.get(peer.key)
        return worker is not None and bool(worker.tasks or worker.abandoned)

    def lost(self, peer: WorkerConnection, reason: str, loss: Loss) -> None:
        """Move or fail the tasks of a connection that is lost."""
        self._settings.left(peer.key)
        self._account(peer)
        n_tasks = len(self._dispatcher.workers[peer.key].tasks)
        died = loss.is_death
        kind = EventKind.LOST if died else EventKind.LEFT
        self.events.note(kind, name=peer.name, model=peer.model, why=reason, n_tasks=n_tasks)
        actions = self._dispatcher.worker_lost(peer.key, self._now(), died=died)
        if died:
            if loss is Loss.BROKEN:
                self._broken.ended(peer)
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
                "n_tasks": n_tasks,
                "action": (_MOVED if n_tasks else _UNTOUCHED) if died else None,
            },
        )
        self._runner.perform(actions)

    def _account(self, peer: WorkerConnection) -> None:
        """Count what a lost worker has computed, from its own memory if that can be read here."""
        if peer.accounts is None:
            return
        for account in peer.accounts.of(peer.number):
            task_key = TaskKey(account.task, account.attempt)
            end = m.Failed(code=ErrorCode.INTERNAL, message="", usage=account.usage)
            if not (implausible(end) or self._overstated(task_key, end)):
                self._dispatcher.accounted(peer.key, task_key, account.usage)
        sums = peer.accounts.sums()
        stats = dataclasses.replace(
            peer.stats, n_prompt=sums.n_read, n_cached=sums.n_cached, n_predicted=sums.n_predicted
        )
        if not implausible_stats(stats):
            self._metrics.record_stats(peer.name, peer.model, peer.epoch, stats)

    def dropped(self, n: int) -> None:
        """Count messages that belong to no task."""
        self._metrics.dropped(n)

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

    def received(self, peer: WorkerConnection, items: Sequence[FrameItem], now: float) -> None:
        """Take the messages of one frame: mostly one delta for each busy slot.

        Raises `ProtocolError` for a report that cannot be; the rest of the frame is not looked at.
        """
        streams, key = self._streams.by_id, peer.key
        for item in items:
            try:
                if type(item) is Envelope and type(item.payload) is m.Delta:
                    task_key = item.task
                    stream = streams.get(task_key.id)
                    # `Task.is_at` without its call, for each token of the pool.
                    if (
                        stream is None
                        or (task := stream.task).attempt != task_key.attempt
                        or task.worker != key
                    ):
                        self._drop(key, task_key)
                    else:
                        stream.push_delta(item.payload, now)
                        if not task.is_trusted:
                            self._runner.perform(self._dispatcher.delta_came(key, task_key, now))
                else:
                    _check(item)
                    self._receive(peer, item, now)
            except ProtocolError:
                raise
            except Exception:
                self._fail_task_of(peer, item)

    def _receive(self, peer: WorkerConnection, item: FrameItem, now: float) -> None:
        match item:
            case Envelope(task_key, m.Terminal() as end) if task_key.id in ORDERS:
                if isinstance(end, m.Failed) and self._settings.was_refused(peer.key, task_key):
                    logger.error(
                        "setting not applied",
                        extra={
                            "worker": peer.name,
                            "model": peer.model,
                            "setting": ORDERS[task_key.id],
                            "cause": end.message[:MAX_REASON],
                            "action": "this worker goes on with its old setting",
                            "hint": "remove the cause, then make the same request again",
                        },
                    )
            case Envelope(task_key, m.Terminal() as end):
                task = self._dispatcher.book.find(peer.key, task_key)
                self._check_end(peer, task_key, end)
                if task is None:
                    self._drop(peer.key, task_key)
                elif task.cancelled_at:
                    cancel = self._metrics.of_model(task.spec.model).cancel
                    cancel.observe(now - task.cancelled_at)
                self._runner.perform(self._dispatcher.ended(peer.key, item, now))
            case Envelope(task_key, m.Malformed() as malformed):
                self._unreadable(peer, task_key, malformed)
            case Envelope(_, m.Started() | m.Progress() | m.PromptRead()):
                self._advance(peer, item, now)
            case m.Ready():
                self._open(peer, item, now)
            case m.Message():
                self._note(peer, item)

    def _check_end(self, peer: WorkerConnection, task_key: TaskKey, end: m.Terminal) -> None:
        """Refuse an end of another kind, or that counts too much; raises `ProtocolError`."""
        stream = self._streams.by_id.get(task_key.id)
        task = self._dispatcher.of_attempt(peer.key, task_key)
        if task is not None and stream is not None and not is_answer(stream.request, end):
            raise ProtocolError(f"{type(end).__name__} ends no {type(stream.request).__name__}")
        if task is not None and (what := overstated(end, len(task.answer.tokens))):
            raise ProtocolError(f"{type(end).__name__}: {what} cannot be")
        self._check_reading(task_key, end)

    def _check_reading(self, task_key: TaskKey, message: m.TaskMessage) -> None:
        """Refuse what no worker can have read or written; raises `ProtocolError`."""
        if what := self._overstated(task_key, message):
            raise ProtocolError(f"{type(message).__name__}: {what} cannot be")

    def _overstated(self, task_key: TaskKey, message: m.TaskMessage) -> str:
        """Return which count exceeds what a task with an open stream can have cost."""
        stream = self._streams.by_id.get(task_key.id)
        if stream is None:
            return ""
        n_seen = len(stream.answer.tokens)
        written = overstated(message, n_seen) if isinstance(message, m.Terminal) else ""
        return written or overread(message, stream.longest_prompt, n_seen)

    def _note(self, peer: WorkerConnection, message: m.Message) -> None:
        """Note what a worker reports of itself; a state that is known already is ignored."""
        worker = self._dispatcher.workers[peer.key]
        match message:
            case Cached():
                peer.count_cached(message)
                self._dispatcher.cached(peer.key, message)
            case m.Admitted() if worker.is_held:
                logger.info("worker admitted", extra={"worker": peer.name, "model": peer.model})
                self.events.note(EventKind.READY, name=peer.name, model=peer.model)
                self._runner.perform(self._dispatcher.worker_admitted(peer.key, self._now()))
            case m.Draining() if worker.state is not WorkerState.LEAVING:
                logger.info("worker draining", extra={"worker": peer.name, "model": peer.model})
                self.events.note(EventKind.DRAINING, name=peer.name, model=peer.model)
                self._runner.perform(self._dispatcher.worker_leaves(peer.key, self._now()))
            case Recall(n=n):
                n_unused = worker.give_back(n)
                self._runner.post(peer.key, Returned(n=n_unused))
                self._runner.send_demand(peer.key)
            case SettingsReport():
                self._settings.reported(peer.key, message)
            case m.Heartbeat():
                now = self._now()
                message = _with_counters(peer, message)
                peer.note_heartbeat(message, now)
                self._runner.perform(self._dispatcher.worker_shares(peer.key, message, now))
                self._dispatcher.connected.sleeps(peer.key, message.is_sleeping)
                self._metrics.record_stats(peer.name, peer.model, peer.epoch, message.stats)

    def _open(self, peer: WorkerConnection, ready: m.Ready, now: float) -> None:
        card = ready.card
        if peer.is_ready:
            raise ProtocolError("Ready comes once")
        peer.is_ready = True
        self._runner.post(peer.key, m.Opened())
        for order in self._settings.joined(peer.key, card.name):
            self._runner.post(peer.key, order)
        opened = self._dispatcher.worker_ready(
            peer.key, card, now, is_held=ready.is_held, granted=ready.granted
        )
        self._runner.perform(opened)
        if not ready.is_held:
            self.events.note(EventKind.READY, name=peer.name, model=card.name)
        logger.info(
            "worker ready",
            extra={"worker": peer.name, "model": card.name, "n_slots": card.n_slots},
        )

    def _advance(self, peer: WorkerConnection, envelope: Envelope, now: float) -> None:
        task_key, message, _ = envelope
        self._check_reading(task_key, message)
        if isinstance(message, m.PromptRead):
            if actions := self._dispatcher.prompt_cost(peer.key, task_key, message, now):
                self._runner.perform(actions)
            return
        if isinstance(message, m.Started):
            is_wanted = self._dispatcher.started(peer.key, envelope, now)
        else:
            is_wanted = self._dispatcher.progressed(peer.key, task_key)
        if not is_wanted:
            self._drop(peer.key, task_key)
            return
        stream = self._streams.by_id[task_key.id]
        answer = stream.answer
        if isinstance(message, m.Started):
            task = stream.task
            slot = self._dispatcher.slots.global_id(peer.name, message.slot)
            message = dataclasses.replace(message, slot=slot)
            self._metrics.reused(task.spec.model, expected=task.n_expected, found=task.n_cached)
            if task.n_resumed:
                self._metrics.read_again(task.spec.model, message.n_reread)
        # From a second worker the client gets only the rest of the answer.
        if answer.told_attempt in (-1, task_key.attempt):
            answer.told_attempt = task_key.attempt
            stream.push(message)
        elif isinstance(message, m.Started):
            stream.push(Resumed())

    def _drop(self, key: str, task_key: TaskKey) -> None:
        """Count a message that belongs to no task, unless its task was given up a moment ago."""
        if not self._dispatcher.was_given_up(key, task_key):
            self._metrics.dropped(1)

    def _fail_task_of(self, peer: WorkerConnection, item: FrameItem) -> None:
        """End the task whose message raised an exception, if this worker still has it."""
        task_id = item.task.id if isinstance(item, Envelope) else -1
        self.failed("message", task_id)
        self._break_of(peer, task_id)

    def _unreadable(self, peer: WorkerConnection, task_key: TaskKey, message: m.Malformed) -> None:
        """End the task of a message that could not be read."""
        if self._dispatcher.book.find(peer.key, task_key) is None:
            self._drop(peer.key, task_key)
            return
        logger.error(
            "message unreadable",
            extra={
                "worker": peer.name,
                "task": task_key.id,
                "cause": message.reason,
                "action": "the task fails",
            },
        )
        self._metrics.fault("message")
        self._break_of(peer, task_key.id)

    def _break_of(self, peer: WorkerConnection, task_id: int) -> None:
        stream = self._streams.by_id.get(task_id)
        if stream is not None and stream.task.worker == peer.key:
            self._runner.break_task(task_id)


def _with_counters(peer: WorkerConnection, heartbeat: m.Heartbeat) -> m.Heartbeat:
    """Return a heartbeat with plausible counters: its own, or those of the last heartbeat."""
    if not (what := implausible_stats(heartbeat.stats)):
        return heartbeat
    if not peer.is_miscounting:
        peer.is_miscounting = True
        logger.warning(
            "counters implausible",
            extra={
                "worker": peer.name,
                "cause": f"{what} is out of range",
                "action": "the counters of its last report stay",
            },
        )
    return dataclasses.replace(heartbeat, stats=peer.stats)


def _check(item: FrameItem) -> None:
    """Refuse a report that cannot be; raises `ProtocolError`."""
    message = item.payload if isinstance(item, Envelope) else item
    if what := implausible(message):
        raise ProtocolError(f"{type(message).__name__}: {what} is out of range")
