"""Performs the actions of the dispatcher: sends messages to workers, and ends streams.

Messages from the workers are handled by `worker_inbox.py`.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Sequence

from gateway.metrics.metrics import Metrics
from gateway.pool.dispatch.actions import (
    Action,
    Assign,
    CancelTask,
    Deliver,
    Ejected,
    Fail,
    ProceedTask,
)
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.model_settings import ModelSettings
from gateway.pool.network.connections import WorkerConnections
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.stream import TaskStream
from gateway.pool.tasks.task import INTERNAL_ERROR
from gateway.pool.tasks.task_streams import TaskStreams
from gateway.pool.worker_inbox import WorkerInbox
from protocol.config.config import GatewayConfig
from protocol.errors import ErrorCode, TaskError
from protocol.wire import messages as m
from protocol.wire.messages import Envelope, FrameItem, TaskKey

logger = logging.getLogger(__name__)


class TaskTransport:
    """Sends tasks, and ends their streams."""

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
        self.streams = TaskStreams(metrics)
        self.inbox = WorkerInbox(self, self.streams, dispatcher, settings, metrics)
        self.events = self.inbox.events
        self.connections = WorkerConnections(self.inbox, config, gateway, metrics.handshake_failed)

    def close(self) -> None:
        """Fail the remaining tasks and drop every connection."""
        self.streams.close()
        self.connections.close()

    def sweep(self, now: float) -> None:
        """Lose silent workers and fail the tasks that waited too long."""
        self.connections.sweep(now)
        for name in self._dispatcher.connected.forget_departed(now):
            self._metrics.forget_worker(name)
        self.perform(self._dispatcher.expire(now))
        for key, order in self._settings.due():
            self.connections.post(key, order)
        if self._dispatcher.connected.n_shared:
            for key, demand in self._dispatcher.demand.changed(now):
                self.connections.post(key, demand)

    def post(self, key: str, item: FrameItem) -> None:
        """Send a worker a message with this turn of the loop."""
        self.connections.post(key, item)

    def abandon(self, model: str) -> None:
        """Fail the tasks that wait for a model that was unloaded."""
        self.perform(self._dispatcher.abandon(model))

    def submit(self, request: m.TaskMessage, spec: TaskSpec) -> TaskStream:
        """Open the stream of a task; raises `TaskError` if the dispatcher refuses it."""
        latencies = self._metrics.of_model(spec.model)
        started = time.perf_counter()
        try:
            actions = self._dispatcher.submit(spec, self._now())
        except TaskError as error:
            self._metrics.refused(spec.model, spec.key, error.code)
            raise
        finally:
            latencies.decision.observe(time.perf_counter() - started)
        stream = TaskStream(
            self._dispatcher.tasks[spec.task_id],
            request,
            latencies=latencies,
            offers=self.streams.offers,
            on_close=self._abandon,
        )
        self.streams.add(stream)
        self.perform(actions)
        return stream

    def _abandon(self, stream: TaskStream) -> None:
        self.perform(self._dispatcher.cancel(stream.task_id, self._now()))
        self.streams.end(stream, "cancelled")

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out what the dispatcher decided."""
        for action in actions:
            try:
                self._act(action)
            except Exception:
                self._give_up(action)
        if self._dispatcher.connected.n_shared:
            for key, demand in self._dispatcher.demand.crossed(self._now()):
                self.connections.post(key, demand)

    def _act(self, action: Action) -> None:
        match action:
            case Assign():
                self._send_task(action)
            case CancelTask(worker, task_id, attempt):
                self.connections.post(worker, Envelope(TaskKey(task_id, attempt), m.Cancel()))
            case ProceedTask(worker, task_id, attempt):
                self.connections.post(worker, Envelope(TaskKey(task_id, attempt), m.Proceed()))
            case Deliver(envelope):
                self._deliver(self.streams.by_id[envelope.task.id], envelope.payload)
            case Ejected(worker, cause):
                peer = self.connections.get(worker)
                logger.warning(
                    "worker ejected",
                    extra={
                        "worker": peer.name,
                        "model": peer.model,
                        "cause": cause,
                        "action": "it gets one task at a time",
                    },
                )
            case Fail(task_id, error):
                stream = self.streams.by_id[task_id]
                if error.code is ErrorCode.QUARANTINED:
                    _log_quarantined(stream, error)
                stream.fail(error)
                self.streams.end(stream, error.code)

    def _give_up(self, action: Action) -> None:
        """End the task of an action that raised, and give its credit back: it was not sent."""
        if isinstance(action, Ejected):
            self.inbox.failed("action")
            return
        task_id = action.envelope.task.id if isinstance(action, Deliver) else action.task_id
        self.inbox.failed("action", task_id)
        self.break_task(task_id)
        if isinstance(action, Assign):
            failed = m.Failed(code=ErrorCode.INTERNAL, message=INTERNAL_ERROR.message)
            lost = Envelope(TaskKey(task_id, action.attempt), failed)
            self.perform(self._dispatcher.ended(action.worker, lost, self._now()))

    def break_task(self, task_id: int) -> None:
        """End a task whose message or action raised; its worker is told to stop."""
        stream = self.streams.by_id.get(task_id)
        if stream is not None:
            stream.fail(INTERNAL_ERROR)
            cancels = self._dispatcher.cancel(task_id, self._now())
            self.streams.end(stream, ErrorCode.INTERNAL)
            self.perform(cancels)

    def _send_task(self, action: Assign) -> None:
        stream = self.streams.by_id[action.task_id]
        task = stream.task
        request = stream.request
        if action.attempt:
            request = stream.continued_request()
            self._metrics.moved(task.spec.model, task.cause, has_started=task.answer.has_started)
        else:
            stream.latencies.queue.observe(task.queued_s)
        if isinstance(request, m.Generate):
            self._metrics.routed(task.spec.model, task.route)
        task_key = TaskKey(action.task_id, action.attempt)
        self.connections.post(action.worker, Envelope(task_key, request, action.slot))
        self.send_demand(action.worker)

    def send_demand(self, key: str) -> None:
        """Add to the next frame for a shared worker how many tasks wait for it."""
        worker = self._dispatcher.workers.get(key)
        if worker is not None and worker.is_shared:
            demand = self._dispatcher.demand.of(worker, self._now())
            if demand is not None:
                self.connections.post(key, demand)

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
        self.streams.end(stream, finish)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _log_quarantined(stream: TaskStream, error: TaskError) -> None:
    spec = stream.task.spec
    logger.error(
        "request quarantined",
        extra={
            "task": spec.task_id,
            "model": spec.model,
            "key": spec.key or None,
            "fingerprint": spec.fingerprint.digest.hex() if spec.fingerprint is not None else None,
            "cause": error.message,
            "hint": "GET /admin/quarantine lists what is refused, DELETE lets it in again",
        },
    )
