"""Handles the messages of gateways, and makes, loses and replaces the connections to them."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from protocol import WIRE_VERSION
from protocol.errors import ErrorCode, TaskError
from protocol.wire import messages as m
from protocol.wire.field_readers import MAX_REASON, ProtocolError
from protocol.wire.messages import Envelope, FrameItem
from protocol.wire.sharing import Demand, Returned, Stay, Successor
from worker.engine.task import failed
from worker.link.gateways.sessions import GatewaySession, Sessions
from worker.link.gateways.settings import impossible
from worker.link.outbound import Outbound
from worker.link.tasks.tasks import Tasks

logger = logging.getLogger(__name__)

_READING_S = 0.05
"""Maximum time that a turn reads frames of a gateway; the rest is read in the next turn."""
_MIN_BEAT_S, _MAX_BEAT_S = 0.01, 3600.0
"""Bounds of the interval between heartbeats that a gateway may ask for."""
_RECALL_LIMIT_S = 10.0
"""A gateway that has not answered a recall after this time counts as stuck."""
_MAX_SESSIONS = 64
"""Maximum number of gateways and successors of gateways: each holds file descriptors."""
_TOO_MANY = TaskError(ErrorCode.OVERLOADED, "the gateway has sent this worker too many tasks")
_REFUSED_WAIT_S = 60.0
"""Wait before a gateway that has refused this worker is dialled again."""
_WARN_EVERY_S = 60.0
"""Seconds between two log lines about messages that are ignored."""
_NO_CREDIT = TaskError(
    ErrorCode.UNAVAILABLE, "the gateway has sent this worker more tasks than it has credits for"
)


class Inbound:
    """Reads the messages of gateways, and dials those that are not connected."""

    def __init__(
        self,
        outbound: Outbound,
        sessions: Sessions,
        tasks: Tasks,
        hello: m.Hello,
        on_welcome: Callable[[], None],
    ) -> None:
        """`on_welcome` is called when a gateway has answered that knows nothing of this worker."""
        self._on_welcome = on_welcome
        self._outbound = outbound
        self._sessions = sessions
        self._tasks = tasks
        self._hello = hello
        self._ignored_at = -math.inf
        self.refused = ""
        """Why a gateway refused this worker; empty if none did."""

    def redial(self, now: float) -> None:
        """Dial the gateways whose wait is over."""
        if now >= self._sessions.redial_at:
            for session in self._sessions.due():
                self.dial(session)

    def drop_stuck(self) -> None:
        """Give up the gateways that have not answered a recall."""
        for number in self._sessions.grants.overdue(time.monotonic(), _RECALL_LIMIT_S):
            if (session := self._sessions.get(number)) is not None:
                self.drop(session, f"no answer to a recall for {_RECALL_LIMIT_S:g} s")

    def tell_away(self) -> None:
        """Log the gateways that do not answer."""
        for session in self._sessions:
            if not session.is_welcome:
                session.connection.tell_away()

    def read(self, session: GatewaySession) -> None:
        """Handle the messages of a gateway; reconnect after an invalid one."""
        until = time.monotonic() + _READING_S
        try:
            while (items := session.connection.receive()) is not None:
                for item in items:
                    self._handle(session, item)
                    if not session.connection.is_dialled:
                        return
                self._tasks.flush()
                if time.monotonic() > until:
                    break  # the rest makes the next poll return at once
        except ProtocolError as error:
            self.drop(session, str(error))
        self._sessions.send_credits()

    def _handle(self, session: GatewaySession, item: FrameItem) -> None:
        if isinstance(item, Envelope):
            self._handle_task(session, item)
            return
        match item:
            case m.Welcome():
                self._welcome(session, item)
            case m.Opened():
                session.is_open = True
            case m.Refused():
                self._refuse(session, item.reason[:MAX_REASON])
            case m.Drain():
                self._sessions.drain()
            case m.Ping():
                pass
            case _:
                self._handle_credits(session, item)

    def _handle_credits(self, session: GatewaySession, message: m.Message) -> None:
        """Handle a message about credits, or about the gateway's successor."""
        match message:
            case Returned(n=n):
                self._sessions.grants.give_back(session.number, n)
            case Demand(waiting=waiting, oldest_s=oldest_s):
                # An invalid age counts as 0: all other gateways come first.
                age_s = oldest_s if 0 <= oldest_s < math.inf else 0.0
                self._sessions.grants.want(session.number, waiting, time.monotonic() - age_s)
            case Successor():
                self._succeed(session)
            case Stay():
                self._stay(session)
            case _:
                self._ignore(session, message)

    def _ignore(self, session: GatewaySession, message: m.Message | m.TaskMessage) -> None:
        """Log a message that no gateway sends, once a minute: there may be thousands."""
        if time.monotonic() < self._ignored_at + _WARN_EVERY_S:
            return
        self._ignored_at = time.monotonic()
        logger.warning(
            "unexpected message",
            extra={
                "url": session.connection.endpoint,
                "kind": type(message).__name__,
                "action": "it is ignored",
            },
        )

    def _handle_task(self, session: GatewaySession, item: Envelope) -> None:
        """Handle a message of a task. Its key gets the connection, so that it is unique here."""
        if session.number:
            item = item._replace(task=item.task._replace(connection=session.number))
        key, payload, _ = item
        match payload:
            case m.Cancel():
                self._outbound.send(self._tasks.cancel(key))
            case m.Proceed():
                self._tasks.proceed(key)
            case m.Malformed(reason=reason):
                unreadable = TaskError(ErrorCode.INTERNAL, f"unreadable message: {reason}")
                self._outbound.send([failed(key, unreadable)])
            case m.Generate() if self._sessions.grants.has(key):
                self._ignore(session, payload)  # it would take a slot that has no credit
            case m.Generate() if not self._sessions.grants.take(key):
                self._outbound.send([failed(key, _NO_CREDIT)])
            case m.Generate():
                self._outbound.send(self._tasks.take(item))
            case _ if (error := impossible(payload)) is not None:
                self._outbound.send([failed(key, error)])
            case _ if not self._sessions.grants.take_light(key):
                self._outbound.send([failed(key, _TOO_MANY)])
            case _:
                self._outbound.send(self._tasks.take(self._sessions.settings.take(item)))

    def _refuse(self, session: GatewaySession, reason: str) -> None:
        """End this worker if its only gateway refuses it; else go on with the other gateways."""
        others = [other for other in self._sessions if other is not session and other.is_welcome]
        if not others:
            self.refused = reason
            return
        logger.error(
            "refused by a gateway",
            extra={
                "url": session.connection.endpoint,
                "cause": reason,
                "action": "the worker goes on with its other gateways, and asks again later",
            },
        )
        self._sessions.hang_up(session, wait_s=_REFUSED_WAIT_S)
        session.connection.answered()
        self._clear(session)

    def dial(self, session: GatewaySession) -> None:
        """Connect to a gateway and introduce this worker."""
        self._sessions.dial(session)
        session.connection.send([replace(self._hello, connection=session.number)])

    def _welcome(self, session: GatewaySession, message: m.Welcome) -> None:
        if message.wire_version != WIRE_VERSION:
            raise ProtocolError(
                f"the gateway speaks version {message.wire_version}, this worker {WIRE_VERSION}"
            )
        if not _MIN_BEAT_S <= message.heartbeat_s <= _MAX_BEAT_S:
            raise ProtocolError(f"a heartbeat every {message.heartbeat_s} s is not possible")
        twin = self._sessions.twin(session, message.gateway)
        if twin is not None:
            logger.info(
                "gateway reached twice",
                extra={
                    "url": session.connection.endpoint,
                    "action": "its second connection is closed",
                },
            )
            self._stay(twin)
            if session in self._sessions:
                self._forget(session)
            return
        session.heartbeat_s = message.heartbeat_s
        if session.is_welcome:
            return  # repeated: the cache was reported already
        session.is_welcome, session.gateway = True, message.gateway
        session.connection.welcomed()
        self._sessions.join(session)
        self._on_welcome()

    def _succeed(self, session: GatewaySession) -> None:
        """Dial the process that takes over the endpoint of a gateway."""
        if session.is_retired:
            return
        if len(self._sessions) >= _MAX_SESSIONS:
            raise ProtocolError(f"more than {_MAX_SESSIONS} gateways follow one another")
        self.dial(self._sessions.add_successor(session))
        self._sessions.grants.retire(session.number)

    def _stay(self, session: GatewaySession) -> None:
        """Go on with a gateway as if it had named no successor."""
        successor = self._sessions.successor(session)
        if session.is_retired and successor is not None:
            self._forget(successor)
        session.is_retired = False
        self._sessions.grants.retire(session.number, is_retired=False)

    def drop(self, session: GatewaySession, reason: str) -> None:
        """Drop the tasks of a lost connection, and reconnect to its gateway."""
        counts, url = self._tasks.counts(session.number), session.connection.endpoint
        if session.is_retired and not any(counts):
            logger.info("replaced gateway gone", extra={"url": url, "cause": reason})
        elif not any(counts):  # as when all is stopped, the gateway first
            if session.is_welcome or session.connection.tells_again():
                logger.info("waiting for a gateway", extra={"url": url, "cause": reason})
        else:
            logger.warning(
                "gateway lost",
                extra={
                    "url": url,
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
            self.dial(session)

    def _forget(self, session: GatewaySession) -> None:
        """End a session; its gateway is not dialled again."""
        self._sessions.remove(session)
        self._clear(session)

    def _clear(self, session: GatewaySession) -> None:
        """Drop the tasks of a gateway, and give its credits to the others."""
        orders = self._sessions.settings.orders
        self._sessions.leave(session, self._tasks.clear(session.number, orders))
