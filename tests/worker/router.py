"""The gateway's end of the wire, as little of it as a worker needs."""

import itertools
from pathlib import Path

import zmq

from protocol.wire import codec
from protocol.wire import messages as m
from tests.envelopes import T, payloads
from worker.process import WorkerProcess


class Gateway:
    """The least that a worker needs on the other side: a ROUTER and frame counts."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, name: str = "g"
    ) -> None:
        self._context = context
        self.endpoint = endpoint
        self.name = name
        self._sent: dict[bytes, itertools.count[int]] = {}
        self.heard: list[m.FrameItem] = []
        self.peer = b""
        self.open()

    def open(self) -> None:
        """Bind."""
        self._router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(self.endpoint)

    def hide(self) -> None:
        """Let nobody else connect to an `ipc` endpoint; the connections that are there stay."""
        Path(self.endpoint.removeprefix("ipc://")).unlink()

    def close(self) -> None:
        """Be gone."""
        self._router.close()

    def send(self, *messages: m.FrameItem, seq: int | None = None) -> None:
        """Send one frame to the worker heard last."""
        counter = self._sent.setdefault(self.peer, itertools.count())
        number = next(counter) if seq is None else seq
        self._router.send_multipart([self.peer, codec.encode(number, messages)])

    def poll(self, wait_ms: int = 0) -> bool:
        """Take everything that has arrived, or that arrives within this time; return whether."""
        n_before = len(self.heard)
        while self._router.poll(wait_ms):
            wait_ms = 0
            self.peer, data = self._router.recv_multipart()
            messages = codec.decode(data).messages
            self.heard += messages
            if any(isinstance(one, m.Hello) for one in messages):
                self.send(m.Welcome(gateway=self.name))
        return len(self.heard) > n_before

    def make_ready(self, process: WorkerProcess) -> None:
        """Begin a worker, welcome it, and turn its loop until it says that it is ready."""
        process.open()
        self.poll(10_000)
        self.send(m.Welcome(gateway=self.name, heartbeat_s=0.02), m.Opened())
        while not self.of(m.Ready):
            process.turn()
            self.poll()

    def of(self, kind: type[T]) -> list[T]:
        """Messages of one type."""
        return payloads(self.heard, kind)
