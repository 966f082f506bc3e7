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
from protocol.wire.messages import Envelope, FrameItem
from protocol.wire.sharing import Demand, Returned, Stay, Successor
from worker.embedding.batcher import EmbeddingBatcher
from worker.engine.engine import Engine
from worker.engine.task import Announce, failed
from worker.link.connection import GatewayConnection
from worker.link.outbound import OutboundQueue
from worker.link.preparation import Preparation
from worker.link.sessions import GatewaySession, Sessions
from worker.link.side_tasks import SideTasks
from worker.link.tasks import Tasks
from worker.prompt.prompt import PromptReader

logger = logging.getLogger(__name__)

_FORWARDING_S = 0.1
"""Maximum time that a turn forwards messages of the engine before the process does other work."""
_HEARING_S = 0.05
"""Maximum time that a turn reads frames of a gateway; the rest is read in the next turn."""
_RECALL_LIMIT_S = 10.0
"""A gateway that has not answered a recall after this time is taken for stuck."""


class Link:
    """Speaks with the gateways on behalf of one engine."""

    def __init__(
        self, connections: Sequence[GatewayConnection], outlet: OutboundQueue, hello: m.Hello
    ) -> None:
        self._sessions = Sessions(connections, outlet.fd, self._heartbeat)
        self._outlet = outlet
        self._hello = hello
        self._engine: Engine | None = None
        self._card: facts.ModelCard | None = None
        self.preparation = Preparation(outlet.wake)
        self.tasks = Tasks(self.preparation)
        self._away = m.Heartbeat(step=0, busy=0)
        """The heartbeat while there is no engine."""
        self._next_beat = 0.0
        self._slowest_s = 0.0
        """Longest wait for this thread since the last heartbeat, in seconds."""
        self.draining = False
        self.refused = ""
        """Why a gateway refused this worker; empty if none did."""

    # ---- the process --------------------------------------------------------------------------

    def open(self) -> None:
        """Dial the gateways and introduce this worker."""
        for session in self._sessions:
            self._dial(session)

    @property
    def is_open(self) -> bool:
        """A gateway has opened the slots: it will send tasks."""
        return any(session.is_open for session in self._sessions)

    def close(self, reason: str, *, is_failure: bool = False) -> None:
        """Send the last messages of the engine, send `Bye` and close the connections."""
        self.preparation.close()
        self._forward(self._outlet.take())
        self._sessions.post([m.Bye(reason=reason, is_failure=is_failure)])
        for session in self._sessions:
            # Without a gateway nobody would ever take the last frames.
            session.connection.close(linger_ms=1000 if session.is_welcome else 0)

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
        if is_known:
            self._beat()
        else:
            self._sessions.open_slots(card)
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
            self._sessions.post([m.Draining()])

    @property
    def is_held(self) -> bool:
        """The worker is being tried: gateways give it only tasks that name it."""
        return self._sessions.is_held

    @is_held.setter
    def is_held(self, is_held: bool) -> None:
        self._sessions.is_held = is_held

    def admit(self) -> None:
        """Take all tasks from now on: the worker was held, and has been found good."""
        if self.is_held:
            self.is_held = False
            self._sessions.post([m.Admitted()])

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
        goes_on = self._deal(min(self._next_beat, self._sessions.redial_at))
        while goes_on and time.monotonic() < until:
            goes_on = self._deal(min(until, self._next_beat))
        if time.monotonic() >= self._sessions.redial_at:
            for session in self._sessions.due():
                self._dial(session)
        if time.monotonic() >= self._next_beat:
            self._say(self.tasks.overdue())
            self._lose_stuck()
            self._sessions.tell()
            self._beat()

    # -------------------------------------------------------------------------------------------

    def _deal(self, until: float) -> bool:
        """Deal with what comes; tell whether the engine alone spoke, and will go on speaking."""
        timeout_s = max(0.0, until - time.monotonic())
        ready: dict[Any, int] = dict(
            zmq.zmq_poll(self._sessions.sources, math.ceil(timeout_s * 1e3))
        )
        start = time.monotonic()
        for session in self._sessions:
            if session.connection.monitor_fd in ready and session.connection.was_dropped():
                self._lose(session, "the gateway hung up")
        said: list[FrameItem] = []
        if self._outlet.fd in ready:
            said = self._outlet.take()
            self._forward(said)
            if self.preparation.has_results:
                self._say(self.tasks.prepared())
        for session in self._sessions:
            if session.connection.dealer in ready:
                self._hear(session)
        self._slowest_s = max(self._slowest_s, time.monotonic() - start)
        return bool(said and self.tasks.running) and len(ready) <= 1 and not self.draining

    def _beat(self) -> None:
        now = time.monotonic()
        if self._next_beat:
            self._slowest_s = max(self._slowest_s, now - self._next_beat)
        self._next_beat = now + self._sessions.heartbeat_s
        self._sessions.beat()
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

    # ---- out ----------------------------------------------------------------------------------

    def _forward(self, items: list[FrameItem]) -> None:
        """Send what the engine said; a step that ends a task carries the counters with it."""
        said, has_ended = self.tasks.running.tell(items)
        if has_ended:
            self._say(said, beats=True)
        elif said:
            self._give_up(self._sessions.post(said))

    def _say(self, items: Sequence[FrameItem], *, beats: bool = False) -> None:
        """Send messages of which some may end tasks, and what follows from that.

        With `beats` the gateways whose tasks have ended get the counters.
        """
        if items:
            self._give_up(self._sessions.conclude(items, beats=beats))

    def _give_up(self, keys: Sequence[m.TaskKey]) -> None:
        """Stop tasks that have ended because a message of them could not be sent."""
        for key in keys:
            self._say(self.tasks.cancel(key))

    # ---- in -----------------------------------------------------------------------------------

    def _hear(self, session: GatewaySession) -> None:
        """Take what a gateway says; begin a new connection where that makes no sense."""
        until = time.monotonic() + _HEARING_S
        try:
            while (items := session.connection.receive()) is not None:
                for item in items:
                    self._obey(session, item)
                    if not session.connection.is_dialled:
                        return
                self._say(self.tasks.flush())
                if time.monotonic() > until:
                    break  # the rest makes the next poll return at once
        except ProtocolError as error:
            self._lose(session, str(error))
        self._sessions.tell()

    def _obey(self, session: GatewaySession, item: FrameItem) -> None:
        if isinstance(item, Envelope):
            self._take(session, item)
            return
        match item:
            case m.Welcome():
                self._welcome(session, item)
            case m.Opened():
                session.is_open = True
            case m.Refused():
                self.refused = item.reason
            case m.Drain():
                self.drain()
            case m.Ping():
                pass
            case _:
                self._share(session, item)

    def _share(self, session: GatewaySession, message: m.Message) -> None:
        """Take what a gateway says of credits, or of the process that succeeds it."""
        match message:
            case Returned(n=n):
                self._sessions.grants.give_back(session.number, n)
            case Demand(waiting=waiting, oldest_s=oldest_s):
                # What is no age makes the gateway the last.
                age_s = oldest_s if 0 <= oldest_s < math.inf else 0.0
                self._sessions.grants.want(session.number, waiting, time.monotonic() - age_s)
            case Successor():
                self._succeed(session)
            case Stay():
                self._stay(session)
            case _:
                logger.warning(
                    "unexpected message",
                    extra={"kind": type(message).__name__, "action": "it is ignored"},
                )

    def _take(self, session: GatewaySession, item: Envelope) -> None:
        """Take what belongs to a task, under a key that no other gateway's task has."""
        if session.number:
            item = item._replace(task=item.task._replace(connection=session.number))
        key, payload, _ = item
        match payload:
            case m.Cancel():
                self._say(self.tasks.cancel(key))
            case m.Malformed(reason=reason):
                error = TaskError(ErrorCode.INTERNAL, f"unreadable message: {reason}")
                self._say([failed(key, error)])
            case m.Generate():
                self._sessions.grants.take(key)
                self._say(self.tasks.take(item))
            case _:
                self._say(self.tasks.take(self._sessions.settings.take(item)))

    # ---- gateways that come and go ------------------------------------------------------------

    def _dial(self, session: GatewaySession) -> None:
        self._sessions.dial(session)
        session.connection.send([replace(self._hello, connection=session.number)])

    def _welcome(self, session: GatewaySession, message: m.Welcome) -> None:
        if message.wire_version != WIRE_VERSION:
            raise ProtocolError(
                f"the gateway speaks version {message.wire_version}, this worker {WIRE_VERSION}"
            )
        twin = self._sessions.twin(session, message.gateway)
        if twin is not None:
            logger.info("gateway known", extra={"action": "its second connection is closed"})
            self._stay(twin)
            if session in self._sessions:
                self._forget(session)
            return
        session.is_welcome, session.gateway = True, message.gateway
        session.heartbeat_s = message.heartbeat_s
        session.connection.welcomed()
        self._next_beat = 0.0
        self._sessions.join(session)
        if self._engine is not None:  # this gateway does not know what the cache holds
            self._engine.submit(Announce())

    def _succeed(self, session: GatewaySession) -> None:
        """Dial the process that takes the endpoint of a gateway over."""
        if not session.is_retired:
            self._dial(self._sessions.add_successor(session))
            self._sessions.grants.retire(session.number)

    def _stay(self, session: GatewaySession) -> None:
        """Go on with a gateway as if it had named no successor."""
        successor = self._sessions.successor(session)
        if session.is_retired and successor is not None:
            self._forget(successor)
        session.is_retired = False
        self._sessions.grants.retire(session.number, is_retired=False)

    def _lose_stuck(self) -> None:
        for number in self._sessions.grants.overdue(time.monotonic(), _RECALL_LIMIT_S):
            if (session := self._sessions.get(number)) is not None:
                self._lose(session, f"no answer to a recall for {_RECALL_LIMIT_S:g} s")

    def _lose(self, session: GatewaySession, reason: str) -> None:
        """Start over with a gateway: what ran for its old connection has nobody to go to."""
        counts = self.tasks.counts(session.number)
        if session.is_retired and not any(counts):
            logger.info("replaced gateway gone", extra={"cause": reason})
        elif not any(counts):  # as when all is stopped, the gateway first
            logger.info("waiting for a gateway", extra={"cause": reason})
        else:
            logger.warning(
                "gateway lost",
                extra={
                    "cause": reason,
                    "n_pending": counts[0],
                    "n_preparing": counts[1],
                    "n_running": counts[2],
                    "action": "these tasks are dropped; the worker connects again",
                },
            )
        if session.is_retired:
            self._forget(session)
            return
        self._sessions.hang_up(session)
        self._clear(session)
        if session.redial_at <= time.monotonic():
            self._dial(session)

    def _forget(self, session: GatewaySession) -> None:
        """End a session for good."""
        self._sessions.remove(session)
        self._clear(session)

    def _clear(self, session: GatewaySession) -> None:
        """Drop what a gateway had here; its credits are for the others."""
        self.tasks.clear(session.number)
        self._sessions.leave(session)

    def __repr__(self) -> str:
        is_away = self._engine is None
        state = "loading" if self._card is None else "asleep" if is_away else "open"
        state = "draining" if self.draining else state
        return f"<Link {self._hello.worker} {state} {self.tasks!r}>"
