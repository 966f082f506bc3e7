"""The worker's end of the wire: a DEALER socket that notices when its gateway is gone.

Each connection has an identity and a frame count of its own. When the socket monitor reports that
the peer is gone, or when a frame is missing, the connection is closed and a new one is opened.
Everything in flight on the old one is lost as a whole.
"""

import logging
import math
import struct
import time
from collections.abc import Sequence
from dataclasses import replace

import zmq

from protocol.wire import codec
from protocol.wire.codec import FrameRefusal
from protocol.wire.field_readers import ProtocolError
from protocol.wire.messages import Envelope, FrameItem, TaskKey, Terminal
from worker.engine.task import failed
from worker.link.gateways.dialer import CurveFiles, open_dialer

logger = logging.getLogger(__name__)

_LOSSES = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Events after which the worker reconnects: after some of them ZeroMQ does not retry."""
_WARN_EVERY_S = 60.0
"""Seconds between two log lines about the same gateway."""
_AWAY_S = 10.0
"""Time without any answer of a gateway before that is logged. One that starts needs a second."""
_QUIET_LOSSES = 2
"""Losses in a row before a failed handshake on this host is logged. Source: a gateway that is
killed breaks the connection, and often the handshake of the next one too."""


class GatewayConnection:
    """One DEALER to one gateway."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        name: str,
        number: int = 0,
        keys: CurveFiles | None = None,
    ) -> None:
        """`number` is different for each connection of one worker."""
        self._context = context
        self.endpoint = endpoint
        self._name = name
        self.number = number
        self._dialer = open_dialer(endpoint, keys)
        self._n_opened = 0
        self._n_sent = 0
        self._n_received = 0
        self._refused_at = -math.inf
        """When a failed handshake was logged last."""
        self._away_since = math.inf
        """When the gateway was dialled first since it has answered last."""
        self._told_at = -math.inf
        """When it was logged last that the gateway does not answer."""
        self._failed: set[TaskKey] = set()
        """Tasks that were ended because one of their messages could not be sent."""
        self.dealer: zmq.Socket[bytes] = None  # type: ignore[assignment] # set by open()
        self._monitor: zmq.Socket[bytes] = None  # type: ignore[assignment] # set by open()
        self.monitor_fd = -1
        """Readable when `was_dropped` is to be asked; asking the monitor itself costs a call."""

    def open(self) -> None:
        """Dial; whatever is sent before the gateway listens is kept until it does.

        Raises `ConfigError` if the keys for tcp cannot be read.
        """
        self.dealer = self._context.socket(zmq.DEALER)
        self.dealer.setsockopt(
            zmq.IDENTITY, f"{self._name}:{self.number}.{self._n_opened}".encode()
        )
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.setsockopt(zmq.SNDHWM, 0)
        self.dealer.setsockopt(zmq.RCVHWM, 0)
        self._dialer.prepare(self.dealer)
        self.dealer.setsockopt(zmq.MAXMSGSIZE, codec.MAX_FRAME_BYTES)
        self._monitor = self.dealer.get_monitor_socket(_LOSSES)
        self.monitor_fd = int(self._monitor.getsockopt(zmq.FD))
        self.was_dropped()  # ZeroMQ wakes only a reader that has once found nothing
        self.dealer.connect(self.endpoint)
        if math.isinf(self._away_since):
            self._away_since = time.monotonic()
        self._n_opened += 1
        self._n_sent = self._n_received = 0
        self._failed.clear()

    def second(self, number: int) -> "GatewayConnection":
        """Return another connection to the same endpoint."""
        keys = self._dialer.files
        other = GatewayConnection(self._context, self.endpoint, self._name, number, keys)
        other._dialer = replace(self._dialer)
        return other

    @property
    def is_dialled(self) -> bool:
        """Whether there is a socket; without one nothing is sent."""
        return self.monitor_fd >= 0

    def close(self, *, linger_ms: int = 0) -> None:
        """Hang up, if it is dialled; `linger_ms` lets the last frames leave."""
        if not self.is_dialled:
            return
        self.monitor_fd = -1
        self.dealer.disable_monitor()
        self._monitor.close()
        self.dealer.close(linger=linger_ms)

    def send(self, items: Sequence[FrameItem]) -> Sequence[TaskKey]:
        """Send messages, in one frame if they fit; return the tasks that this has ended.

        A message that cannot be sent ends its own task with `Failed`; nothing follows that.
        """
        if not self.is_dialled:
            return ()
        if self._failed:
            items = self._without_failed(items)
        packed = codec.pack(self._n_sent, items)
        for data in packed.frames:
            self.dealer.send(data, zmq.NOBLOCK)
            self._n_sent += 1
        return self._fail(packed.refused) if packed.refused else ()

    def _fail(self, refused: Sequence[FrameRefusal]) -> list[TaskKey]:
        ended: dict[TaskKey, Envelope] = {}
        goes_on: set[TaskKey] = set()
        for item, error in refused:
            message = item.payload if isinstance(item, Envelope) else item
            logger.error(
                "message not sent",
                extra={
                    "url": self.endpoint,
                    "kind": type(message).__name__,
                    "task": item.task.id if isinstance(item, Envelope) else None,
                    "cause": error.message,
                    "action": "its task fails" if isinstance(item, Envelope) else None,
                },
            )
            if isinstance(item, Envelope):
                ended[item.task] = failed(item.task, error)
                if not isinstance(message, Terminal):
                    goes_on.add(item.task)
        self.send(list(ended.values()))
        self._failed |= goes_on
        return list(ended)

    def _without_failed(self, items: Sequence[FrameItem]) -> list[FrameItem]:
        wanted: list[FrameItem] = []
        for item in items:
            if not isinstance(item, Envelope) or item.task not in self._failed:
                wanted.append(item)
            elif isinstance(item.payload, Terminal):
                self._failed.discard(item.task)
        return wanted

    def receive(self) -> tuple[FrameItem, ...] | None:
        """Return the messages of the next frame, or None if there is none.

        Raises `ProtocolError` for bytes that make no sense, or when a frame is missing.
        """
        try:
            data = self.dealer.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        frame = codec.decode(data)
        if frame.seq != self._n_received:
            raise ProtocolError(f"frame {frame.seq} came where {self._n_received} was due")
        self._n_received += 1
        return frame.messages

    def was_dropped(self) -> bool:
        """Read the monitor: whether the gateway's end has gone away, or has refused this one."""
        dropped = False
        while self._monitor.poll(0):
            # zmq.utils.monitor would bring asyncio and TLS: 4 MB
            head, _ = self._monitor.recv_multipart()
            (event,) = struct.unpack_from("=H", head)
            if event != zmq.EVENT_DISCONNECTED:
                self._warn(event)
            dropped = True
        return dropped

    def lost(self) -> float:
        """Close after a loss; return the seconds to wait before `open` is called again."""
        self.close()
        return self._dialer.failed()

    def welcomed(self) -> None:
        """Note that the gateway has taken this worker in."""
        if self._dialer.n_failed or not math.isinf(self._told_at):
            logger.info("gateway reached", extra={"url": self.endpoint})
        self._dialer.welcomed()
        self._refused_at = -math.inf
        self.answered()

    def answered(self) -> None:
        """Note that the gateway has answered, even if it refuses this worker."""
        self._away_since, self._told_at = math.inf, -math.inf

    def tells_again(self) -> bool:
        """Whether to log once more that the gateway does not take this worker in: once a minute."""
        if time.monotonic() < self._told_at + _WARN_EVERY_S:
            return False
        self._told_at = time.monotonic()
        return True

    def tell_away(self) -> None:
        """Log that the gateway has not answered for long, unless another line has said why."""
        now = time.monotonic()
        if now < max(self._away_since + _AWAY_S, self._refused_at + _WARN_EVERY_S):
            return
        if self.tells_again():
            logger.warning(
                "gateway not reached",
                extra={
                    "url": self.endpoint,
                    "silent_s": round(now - self._away_since, 1),
                    "action": "the worker dials again",
                    "hint": "see that its name resolves, that it runs there, of the same release, "
                    "and that no firewall is between; llamapool doctor checks address and port",
                },
            )

    def _warn(self, event: int) -> None:
        """Log a failed handshake, once a minute."""
        is_tcp = self._dialer.endpoint.is_tcp
        if not is_tcp and self._dialer.n_failed < _QUIET_LOSSES:
            return
        if time.monotonic() < self._refused_at + _WARN_EVERY_S:
            return
        if event != zmq.EVENT_HANDSHAKE_FAILED_AUTH and self._dialer.has_untried_keys:
            return
        self._refused_at = time.monotonic()
        cause, hint = self._reason(event)
        logger.warning(
            "handshake failed",
            extra={
                "url": self.endpoint,
                "cause": cause,
                "action": "the worker dials again",
                "hint": hint,
            },
        )

    def _reason(self, event: int) -> tuple[str, str]:
        """Return cause and hint of a failure."""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            cause = "the gateway does not know this worker's key, or blocks it"
            return cause, "put the .pub file of this worker into the gateway's --worker-keys"
        if not self._dialer.endpoint.is_tcp:
            cause = "no handshake: no gateway listens there, or it has ended"
            return cause, "see the gateway's log, and check --connect"
        if math.isinf(self._away_since):  # the gateway has answered on this connection
            cause = "a message of the gateway was damaged on the way"
            return cause, "look for a proxy or faulty hardware between the two hosts"
        cause = "no handshake: wrong key for this gateway, or no gateway listens there"
        return cause, "check --gateway-keys and --connect"
