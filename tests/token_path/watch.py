"""Which files of ours have a token in their hands, from the engine to the client's socket.

`python -m tests.token_path` prints them with their functions, in the order in which a token comes
to them. Engine, link and gateway run in this process, with the fake backend. A function counts if
it has had the token's text, or bytes of a frame or an event that hold it, as an argument, a local
or a result.
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import click
import httpx
import zmq

from protocol.config.config import WorkerConfig
from protocol.wire import messages as m
from tests.gateway.inprocess import running, until
from worker.engine.engine import Engine
from worker.engine.engine_config import EngineConfig
from worker.engine.fake.backend import FakeBackend
from worker.engine.task import Stop
from worker.link.gateways.connection import GatewayConnection
from worker.link.link import Link
from worker.link.outbound import OutboundQueue
from worker.prompt.prompt import PromptReader

ROOT = Path(__file__).parent.parent.parent
TOKEN = "@"
_OURS = tuple(f"{ROOT / name}/" for name in ("gateway", "worker", "protocol"))
_BEGUN, _SEEN = 20, 40
"""Events of the stream between which it is watched: it has started, and goes on."""
_FIRST = "worker/output/generation.py"
"""Here the token becomes text."""


class Trace:
    """Notes functions while `is_on`, by file, in the order in which a token first came to them."""

    def __init__(self) -> None:
        self.is_on = False
        self.files: dict[str, dict[str, None]] = {}
        self._seen: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """Look at a function that is called or returns."""
        code = frame.f_code
        if not (self.is_on and event in ("call", "return")) or code in self._seen:
            return
        if not code.co_filename.startswith(_OURS) or "/fake/" in code.co_filename:
            return
        name = str(Path(code.co_filename).relative_to(ROOT))
        if not (self.files or name == _FIRST):
            return  # a token before the first one that is watched
        if _holds(list(frame.f_locals.values())) or _holds(result):
            self._seen.add(code)
            self.files.setdefault(name, {})[code.co_qualname] = None


def _holds(value: Any, depth: int = 5) -> bool:
    """Return whether a value is the token, or messages or bytes that hold it."""
    match value:
        case str():
            return TOKEN in value and "[[" not in value  # the prompt asks for it
        case zmq.Frame():
            return TOKEN.encode() in value.bytes
        case bytes():
            return len(value) > len(TOKEN) and TOKEN.encode() in value
        case m.Delta():
            return TOKEN in value.text
        case dict():
            return depth > 0 and any(_holds(one, depth - 1) for one in value.values())
        case list() | tuple():
            return depth > 0 and any(_holds(one, depth - 1) for one in value)
    return False


@contextmanager
def worker(endpoint: str, trace: Trace) -> Iterator[None]:
    """Run an engine and its link, each in a thread, until the block ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    # Slow enough that no two tokens wait together.
    config = WorkerConfig(backend="fake", n_slots=1, n_ctx=1024, fake_step_ms=5)
    backend, outbound_queue = FakeBackend(config), OutboundQueue()
    engine = Engine(backend, EngineConfig(n_slots=1, n_ctx=1024), outbound_queue.put)
    hello = m.Hello(worker="w", epoch=1, model="fake")
    link = Link([GatewayConnection(context, endpoint, "w:1")], outbound_queue, hello)
    link.open()
    link.attach(engine, PromptReader(backend, cuts_long=False), backend.card)
    is_over = threading.Event()

    def forward() -> None:
        while not is_over.is_set():
            link.turn()

    threading.setprofile(trace)
    threads = [threading.Thread(target=one) for one in (engine.run, forward)]
    for thread in threads:
        thread.start()
    threading.setprofile(None)
    try:
        yield
    finally:
        engine.submit(Stop())
        is_over.set()
        outbound_queue.wake()
        for thread in threads:
            thread.join()
        link.close("it is over")
        outbound_queue.close()
        context.term()


async def watched(client: httpx.AsyncClient, trace: Trace) -> None:
    """Stream a chat; watch some tokens in its middle."""
    chat = [{"role": "user", "content": f"[[say {TOKEN * 3 * _SEEN}]]"}]
    body = {"messages": chat, "stream": True, "max_tokens": 2 * _SEEN}
    n = 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            n += line.startswith("data: ")
            trace.is_on = _BEGUN <= n < _SEEN
    assert n > _SEEN, f"the stream had {n} events"


async def path_of_a_token() -> dict[str, list[str]]:
    """Return the files that a token of a chat passes, and its functions in each."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as gateway:
            with worker(gateway.endpoint, trace):
                await until(lambda: gateway.pool.health().n_workers > 0)
                sys.setprofile(trace)
                try:
                    await watched(gateway.client, trace)
                finally:
                    sys.setprofile(None)
    return {name: list(functions) for name, functions in trace.files.items()}


def main() -> None:
    """Print the files with their functions, and how many they are."""
    path = asyncio.run(path_of_a_token())
    for name, functions in path.items():
        click.echo(f"{name}: {', '.join(functions)}")
    n_functions = sum(map(len, path.values()))
    click.echo(f"{len(path)} files, {n_functions} functions")
