"""The worker's main thread: socket, heartbeat, tasks in, messages of the engine out.

It neither computes nor blocks, so it answers while a model loads, a long prompt is read or a
template loops. Messages of the gateway go to `Tasks`; messages of the engine leave as frames.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import zmq

from protocol import WIRE_VERSION
from protocol.errors import ErrorCode, TaskError
from protocol.wire import facts
from protocol.wire import messages as m
from protocol.wire.codec import ProtocolError
from protocol.wire.messages import FrameItem
from worker.embedding.batcher import EmbeddingBatcher
from worker.engine.engine import Engine
from worker.engine.task import failed
from worker.link.connection import GatewayConnection
from worker.link.outbound import OutboundQueue
from worker.link.preparation import Preparation
from worker.link.side_tasks import SideTasks
from worker.link.tasks import Tasks
from worker.prompt.prompt import PromptReader

logger = logging.getLogger(__name__)

DEFAULT_HEARTBEAT_S = 1.0
_FORWARDING_S = 0.1
"""Maximum time that a turn forwards messages of the engine before the process does other work."""
_HEARING_S = 0.05
"""Maximum time that a turn reads frames; the rest is read in the next turn."""


class Link:
    """Speaks with one gateway on behalf of one engine."""

    def __init__(
        self, connection: GatewayConnection, outlet: OutboundQueue, hello: m.Hello
    ) -> None:
        self._connection = connection
        self._outlet = outlet
        self._hello = hello
        self._engine: Engine | None = None
        self._card: facts.ModelCard | None = None
        self.preparation = Preparation(outlet.wake)
        self.tasks = Tasks(self.preparation)
        self._away = m.Heartbeat(step=0, busy=0)
        """The heartbeat while there is no engine."""
        self._heartbeat_s = DEFAULT_HEARTBEAT_S
        self._next_beat = 0.0
        self._slowest_s = 0.0
        """Longest wait for this thread since the last heartbeat, in seconds."""
        self._sources: list[tuple[Any, int]] = []
        """Sockets and descriptors that a turn polls."""
        self._is_welcome = False
        self.draining = False
        self.is_held = False
        """The worker is being tried: gateways give it only tasks that name it."""
        self.refused = ""
        """Why the gateway refused this worker; empty if it did not."""
        self.is_open = False
        """The gateway has opened the slots: it will send tasks."""

    # ---- the process --------------------------------------------------------------------------

    def open(self) -> None:
        """Dial the gateway and introduce this worker."""
        self._connection.open()
        waits_for = (self._connection.dealer, self._connection.monitor_fd, self._outlet.fd)
        self._sources = [(source, zmq.POLLIN) for source in waits_for]
        self._connection.send([self._hello])
        if self._card is not None:
            self._connection.send([m.Ready(card=self._card, is_held=self.is_held)])

    def close(self, reason: str, *, is_failure: bool = False) -> None:
        """Send the last messages of the engine, send `Bye` and close the connection."""
        self.preparation.close()
        self._forward(self._outlet.take())
        self._connection.send([m.Bye(reason=reason, is_failure=is_failure)])
        # Without a gateway nobody would ever take the last frames.
        self._connection.close(linger_ms=1000 if self._is_welcome else 0)

    def embed_with(self, desk: EmbeddingBatcher) -> None:
        """Take embeddings and rerankings too; to be said before `attach`."""
        self.tasks.embed_with(desk)

    def attach(
        self,
        engine: Engine,
        reader: PromptReader,
        card: facts.ModelCard,
        side: SideTasks | None = None,
    ) -> None:
        """Open the slots: the model is loaded. Again, and the tasks that wait for it begin."""
        is_known = self._card is not None
        self._engine, self._card = engine, card
        if not is_known:
            self._connection.send([m.Ready(card=card, is_held=self.is_held)])
        else:
            self._beat()
        self._say(self.tasks.attach(engine, reader, side))

    def detach(self) -> None:
        """Let go of the engine, which is idle: it falls asleep. Tasks wait until it is back."""
        assert self._engine is not None
        beat = self._engine.heartbeat()
        # The figures stay what they were before, as llama-server's do.
        self._away = m.Heartbeat(step=beat.step, busy=0, stats=beat.stats, is_sleeping=True)
        self.tasks.detach()
        self._engine = None
        self._beat()

    @property
    def wants_engine(self) -> bool:
        """A task waits for the model."""
        return self.tasks.n_preempted > 0

    def give_up(self, error: TaskError) -> None:
        """End the tasks that wait for the model: it will not come."""
        self._say(self.tasks.give_up(error))

    def drain(self) -> None:
        """Take nothing new; `is_idle` will say when the rest is done."""
        if not self.draining:
            self.draining = True
            self._connection.send([m.Draining()])

    def admit(self) -> None:
        """Take all tasks from now on: the worker was held, and has been found good."""
        if self.is_held:
            self.is_held = False
            self._connection.send([m.Admitted()])

    @property
    def is_idle(self) -> bool:
        """No task is here or on its way out."""
        return self.tasks.is_idle

    def turn(self) -> None:
        """Wait for something, at most until the next heartbeat, and deal with it.

        While only the engine speaks, a turn goes on: a token is to take few calls here, for with
        llama.cpp on all cores each of them keeps it waiting.
        """
        until = time.monotonic() + _FORWARDING_S
        goes_on = self._deal(self._next_beat)
        while goes_on and time.monotonic() < until:
            goes_on = self._deal(min(until, self._next_beat))
        if time.monotonic() >= self._next_beat:
            self._say(self.tasks.overdue())
            self._beat()

    # -------------------------------------------------------------------------------------------

    def _deal(self, until: float) -> bool:
        """Deal with what comes; tell whether the engine alone spoke, and will go on speaking."""
        timeout_s = max(0.0, until - time.monotonic())
        ready: dict[Any, int] = dict(zmq.zmq_poll(self._sources, math.ceil(timeout_s * 1e3)))
        start = time.monotonic()
        if self._connection.monitor_fd in ready and self._connection.was_dropped():
            self._reconnect("the gateway hung up")
        said: list[FrameItem] = []
        if self._outlet.fd in ready:
            said = self._outlet.take()
            self._forward(said)
            if self.preparation.has_results:
                self._say(self.tasks.prepared())
        if self._connection.dealer in ready:
            self._hear()
        self._slowest_s = max(self._slowest_s, time.monotonic() - start)
        return bool(said and self.tasks.running) and len(ready) <= 1 and not self.draining

    def _beat(self) -> None:
        now = time.monotonic()
        if self._next_beat:
            self._slowest_s = max(self._slowest_s, now - self._next_beat)
        self._next_beat = now + self._heartbeat_s
        self._connection.send([self._heartbeat()])
        self._slowest_s = 0.0

    def _heartbeat(self) -> m.Heartbeat:
        tasks = self.tasks
        beat = self._engine.heartbeat() if self._engine else self._away
        stats = replace(
            beat.stats,
            link_lag_s=self._slowest_s,
            n_faults=beat.stats.n_faults + tasks.n_faults,
        )
        n_waiting = beat.waiting + tasks.n_preempted + tasks.n_preparing
        return replace(beat, waiting=n_waiting, stats=stats)

    def _forward(self, items: list[FrameItem]) -> None:
        """Send what the engine said; a step that ends a task carries the counters with it."""
        said, has_ended = self.tasks.running.tell(items)
        if has_ended:
            said.append(self._heartbeat())
        self._say(said)

    def _say(self, items: Sequence[FrameItem]) -> None:
        if items:
            for key in self._connection.send(items):
                self._say(self.tasks.cancel(key))

    def _hear(self) -> None:
        """Take what the gateway says; begin a new connection where that makes no sense."""
        until = time.monotonic() + _HEARING_S
        try:
            while (items := self._connection.receive()) is not None:
                for item in items:
                    self._obey(item)
                self._say(self.tasks.flush())
                if time.monotonic() > until:
                    return  # the rest makes the next poll return at once
        except ProtocolError as error:
            self._reconnect(str(error))

    def _reconnect(self, reason: str) -> None:
        """Start over: what ran for the old connection has nobody to go to."""
        if self.tasks.is_idle:  # as when all is stopped, the gateway first
            logger.info("waiting for a gateway", extra={"cause": reason})
        else:
            n_pending, n_preparing, n_running = self.tasks.counts
            logger.warning(
                "gateway lost",
                extra={
                    "cause": reason,
                    "n_pending": n_pending,
                    "n_preparing": n_preparing,
                    "n_running": n_running,
                    "action": "these tasks are dropped; the worker connects again",
                },
            )
        self._connection.close()
        self._is_welcome = False
        self.tasks.clear()
        self.open()

    def _obey(self, item: FrameItem) -> None:
        match item:
            case m.Envelope(key, m.Cancel()):
                self._say(self.tasks.cancel(key))
            case m.Envelope(key, m.Malformed(reason=reason)):
                error = TaskError(ErrorCode.INTERNAL, f"unreadable message: {reason}")
                self._say([failed(key, error)])
            case m.Envelope():
                self._say(self.tasks.take(item))
            case m.Welcome():
                self._welcome(item)
            case m.Opened():
                self.is_open = True
            case m.Refused():
                self.refused = item.reason
            case m.Drain():
                self.drain()
            case m.Ping():
                pass
            case _:
                logger.warning(
                    "unexpected message",
                    extra={"kind": type(item).__name__, "action": "it is ignored"},
                )

    def _welcome(self, message: m.Welcome) -> None:
        if message.wire_version != WIRE_VERSION:
            raise ProtocolError(
                f"the gateway speaks version {message.wire_version}, this worker {WIRE_VERSION}"
            )
        self._is_welcome = True
        self._heartbeat_s = message.heartbeat_s
        self._next_beat = 0.0

    def __repr__(self) -> str:
        is_away = self._engine is None
        state = "loading" if self._card is None else "asleep" if is_away else "open"
        state = "draining" if self.draining else state
        return f"<Link {self._hello.worker} {state} {self.tasks!r}>"
