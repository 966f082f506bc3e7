"""The worker's main thread: socket, heartbeat, tasks in, messages of the engine out.

It neither computes nor blocks, so it answers while a model loads, a long prompt is read or a
template loops. Messages of the gateway go to `Tasks`; messages of the engine leave as frames.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import zmq

from protocol.errors import TaskError
from protocol.wire import facts
from protocol.wire import messages as m
from worker.embedding.batcher import EmbeddingBatcher
from worker.engine.engine import Engine
from worker.engine.task import Announce
from worker.link.gateways.connection import GatewayConnection
from worker.link.gateways.sessions import Sessions
from worker.link.inbound import Inbound
from worker.link.outbound import Outbound, OutboundQueue
from worker.link.tasks.preparation import Preparation
from worker.link.tasks.side_tasks import SideTasks
from worker.link.tasks.tasks import Tasks
from worker.prompt.prompt import PromptReader

_FORWARDING_S = 0.1
"""Maximum time that a turn forwards messages of the engine before the process does other work."""


class Link:
    """Speaks with the gateways on behalf of one engine."""

    def __init__(
        self,
        connections: Sequence[GatewayConnection],
        outbound_queue: OutboundQueue,
        hello: m.Hello,
        *,
        is_held: bool = False,
    ) -> None:
        """With `is_held` the worker is on trial: gateways give it only tasks that name it."""
        self._sessions = Sessions(connections, outbound_queue.fd, self._heartbeat)
        self._sessions.is_held = is_held
        self._outbound_queue = outbound_queue
        self._engine: Engine | None = None
        self._card: facts.ModelCard | None = None
        self.preparation = Preparation(outbound_queue.wake)
        self.tasks = Tasks(self.preparation)
        self._away = m.Heartbeat(step=0, busy=0)
        """The heartbeat while there is no engine."""
        self._next_heartbeat = 0.0
        self._slowest_s = 0.0
        """Longest wait for this thread since the last heartbeat, in seconds."""
        self._outbound = Outbound(
            outbound_queue, self.tasks.running, self._sessions, self.tasks.cancel
        )
        self._inbound = Inbound(
            self._outbound, self._sessions, self.tasks, hello, on_welcome=self._welcomed
        )

    # ---- the process --------------------------------------------------------------------------

    def open(self) -> None:
        """Dial the gateways and introduce this worker."""
        for session in self._sessions:
            self._inbound.dial(session)

    @property
    def is_open(self) -> bool:
        """The gateways that have answered, at least one, have opened the slots: all may use it."""
        answered = [
            session for session in self._sessions if session.is_welcome and not session.is_retired
        ]
        return bool(answered) and all(session.is_open for session in answered)

    def close(self, reason: str, *, is_failure: bool = False) -> None:
        """Send the last messages of the engine, send `Bye` and close the connections."""
        self.preparation.close()
        self._outbound.forward()
        self._sessions.send([m.Bye(reason=reason, is_failure=is_failure)])
        for session in self._sessions:
            # Without a gateway, the last frames would never be taken.
            session.connection.close(linger_ms=1000 if session.is_welcome else 0)

    def attach(
        self,
        engine: Engine,
        reader: PromptReader,
        card: facts.ModelCard,
        side: SideTasks | None = None,
        embeddings: EmbeddingBatcher | None = None,
    ) -> None:
        """Open the slots, since the model is loaded, and begin the tasks that wait for it."""
        is_known = self._card is not None
        self._engine, self._card = engine, card
        if is_known:
            self._send_heartbeat()
        else:
            self._sessions.open_slots(card)
        self._outbound.send(self.tasks.attach(engine, reader, side, embeddings))

    def detach(self) -> None:
        """Detach the idle engine, because the worker falls asleep. Tasks wait for the next one."""
        assert self._engine is not None
        heartbeat = self._engine.heartbeat()
        # The figures stay what they were before, as llama-server's do.
        self._away = m.Heartbeat(
            step=heartbeat.step, busy=0, stats=heartbeat.stats, is_sleeping=True
        )
        self.tasks.detach()
        self._engine = None
        self._send_heartbeat()

    def give_up(self, error: TaskError) -> None:
        """Fail the tasks that wait for the model, because it cannot be loaded."""
        self._outbound.send(self.tasks.give_up(error))

    def drain(self) -> None:
        """Take no new tasks; `is_idle` becomes true when the others are done."""
        self._sessions.drain()

    @property
    def draining(self) -> bool:
        """It takes no new tasks."""
        return self._sessions.is_draining

    def admit(self) -> None:
        """Take all tasks from now on: the worker was held, and has passed its trial."""
        if self._sessions.is_held:
            self._sessions.is_held = False
            self._sessions.send([m.Admitted()])

    @property
    def refused(self) -> str:
        """Why a gateway refused this worker; empty if none did."""
        return self._inbound.refused

    @property
    def is_idle(self) -> bool:
        """No task is here or on its way out."""
        return self.tasks.is_idle

    def turn(self, longest_s: float = math.inf) -> None:
        """Wait for something, at most until the next heartbeat or for `longest_s`, and handle it.

        While only the engine sends messages, a turn goes on: a token must take few calls here,
        because with llama.cpp on all cores each of them delays it.
        """
        now = time.monotonic()
        until = now + _FORWARDING_S
        latest = min(self._next_heartbeat, self._sessions.redial_at, now + longest_s)
        goes_on = self._handle(latest)
        while goes_on and time.monotonic() < until:
            goes_on = self._handle(min(until, self._next_heartbeat))
        self._inbound.redial(time.monotonic())
        if time.monotonic() >= self._next_heartbeat:
            self._outbound.send(self.tasks.overdue())
            self._inbound.drop_stuck()
            self._inbound.tell_away()
            self._sessions.send_credits()
            self._send_heartbeat()

    # -------------------------------------------------------------------------------------------

    def _handle(self, until: float) -> bool:
        """Handle what arrives; return whether only the engine sent something, and will go on."""
        timeout_s = max(0.0, until - time.monotonic())
        ready: dict[Any, int] = dict(
            zmq.zmq_poll(self._sessions.sources, math.ceil(timeout_s * 1e3))
        )
        start = time.monotonic()
        for session in self._sessions:
            if session.connection.monitor_fd in ready and session.connection.was_dropped():
                self._inbound.drop(session, "the gateway hung up")
        has_sent = False
        if self._outbound_queue.fd in ready:
            has_sent = self._outbound.forward()
            if self.preparation.has_results:
                self._outbound.send(self.tasks.prepared())
        for session in self._sessions:
            if session.connection.is_dialled and session.connection.dealer in ready:
                self._inbound.read(session)
        self._slowest_s = max(self._slowest_s, time.monotonic() - start)
        return bool(has_sent and self.tasks.running) and len(ready) <= 1 and not self.draining

    def _send_heartbeat(self) -> None:
        now = time.monotonic()
        if self._next_heartbeat:
            self._slowest_s = max(self._slowest_s, now - self._next_heartbeat)
        self._next_heartbeat = now + self._sessions.heartbeat_s
        self._sessions.send_heartbeats()
        self._slowest_s = 0.0

    def _welcomed(self) -> None:
        """Report to a new gateway what the worker has."""
        self._next_heartbeat = 0.0
        if self._engine is not None:  # this gateway does not know what the cache holds
            self._engine.submit(Announce())

    def _heartbeat(self) -> m.Heartbeat:
        tasks = self.tasks
        heartbeat = self._engine.heartbeat() if self._engine else self._away
        stats = replace(
            heartbeat.stats,
            link_lag_s=self._slowest_s,
            n_faults=heartbeat.stats.n_faults + tasks.n_faults,
        )
        n_waiting = heartbeat.waiting + tasks.n_pending + tasks.n_preparing
        return replace(heartbeat, waiting=n_waiting, stats=stats)
