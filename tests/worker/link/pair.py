"""A gateway in the test, and a link with an engine over the fake backend."""

import threading
import time
from collections.abc import Callable
from typing import Any

import zmq

from protocol.config.config import WorkerConfig
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from tests.envelopes import T
from tests.worker.router import Gateway
from worker.embedding.batcher import EmbeddingBatcher
from worker.engine.engine import Engine
from worker.engine.engine_config import EngineConfig
from worker.engine.fake.backend import FakeBackend
from worker.engine.task import Stop
from worker.link.gateways.connection import GatewayConnection
from worker.link.link import Link
from worker.link.outbound import OutboundQueue
from worker.prompt.prompt import PromptReader


class Pair:
    """A gateway and a link with its engine thread."""

    def __init__(self, endpoint: str, *, is_held: bool = False, **settings: Any) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gateway = Gateway(self.context, endpoint)
        config = WorkerConfig(backend="fake", n_slots=2, n_ctx=512, **settings)
        self.backend = FakeBackend(config)
        self.outbound_queue = OutboundQueue()
        engine_config = EngineConfig(n_slots=2, n_ctx=256)
        self.engine = Engine(self.backend, engine_config, self.outbound_queue.put)
        self.thread = threading.Thread(target=self.engine.run)
        self.thread.start()
        hello = m.Hello(worker="w", epoch=1, model="fake")
        connections = [GatewayConnection(self.context, endpoint, "w:1")]
        self.link = Link(connections, self.outbound_queue, hello, is_held=is_held)
        self.link.open()

    def attach(self, embeddings: EmbeddingBatcher | None = None) -> None:
        """Open the slots."""
        reader = PromptReader(self.backend, cuts_long=False)
        self.link.attach(self.engine, reader, self.backend.card, embeddings=embeddings)

    def until(self, kind: type[T], n: int = 1) -> list[T]:
        """Let both sides work until the gateway has heard `n` of a kind."""
        self.turn_until(lambda: len(self.gateway.of(kind)) >= n)
        return self.gateway.of(kind)

    def turn_until(self, holds: Callable[[], bool]) -> None:
        """Let both sides work until something is so."""
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline, self.gateway.heard[-5:]
            self.outbound_queue.wake()  # do not wait out the heartbeat
            self.link.turn()
            self.gateway.poll()

    @property
    def heartbeats(self) -> list[m.Heartbeat]:
        """The heartbeats that came."""
        return self.gateway.of(m.Heartbeat)

    def close(self) -> None:
        """End everything."""
        self.engine.submit(Stop())
        self.thread.join()
        self.link.close("test is over")
        self.gateway.close()
        self.outbound_queue.close()
        self.context.term()


def generate(task_id: int, prompt: str, n_predict: int = 4) -> m.Envelope:
    """A short greedy generation."""
    params = SamplingParams(n_predict=n_predict, temperature=0.0)
    return m.Envelope(m.TaskKey(task_id), m.Generate(prompt=prompt, params=params))
