"""A real worker under messages that no gateway lets through, while it serves a stream."""

import os
import signal
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from protocol.wire import codec
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Render
from tests.e2e.process import Process
from tests.envelopes import of_task
from tests.models.mmproj import write_mmproj
from tests.models.shallow import N_ALL_TOKENS, shallow_path
from tests.worker.router import Gateway

pytestmark = [pytest.mark.model, pytest.mark.alone, pytest.mark.timeout(400)]

BEAT_S = 0.1
TEMPLATE = (
    "{% if loop_forever %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    '{#- <tool_call> "name" #}'
)


class Watch(Gateway):
    """A gateway that notes when it hears heartbeats and the stream."""

    def __init__(self, endpoint: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        super().__init__(self.context, endpoint)
        self.deltas: list[float] = []

    def until(self, holds: Any, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        n = len(self.heard)
        while not holds():
            assert time.monotonic() < deadline, [type(one).__name__ for one in self.heard[-9:]]
            self.poll(20)
            now = time.monotonic()
            for one in self.heard[n:]:
                if isinstance(one, m.Envelope) and one.task.id == 1 and is_delta(one):
                    self.deltas.append(now)
            n = len(self.heard)

    def written(self, messages: Sequence[m.Envelope]) -> list[bytes]:
        """Write a frame for each message, to be sent in this order and before any other."""
        return [codec.encode(next(self._sent[self.peer]), [one]) for one in messages]

    def send_frame(self, data: bytes) -> None:
        """Send a frame that was written before."""
        self._router.send_multipart([self.peer, data])

    def end_of(self, task_id: int) -> m.Terminal | None:
        said = of_task(self.heard, task_id)
        return next((one for one in said if isinstance(one, m.Terminal)), None)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[tuple[Watch, Process]]:
    endpoint = f"ipc://{tmp_path}/wire"
    write_mmproj(tmp_path / "mmproj.gguf", 576)
    config = tmp_path / "pool.toml"
    (tmp_path / "template").write_text(TEMPLATE)
    config.write_text(
        f'[[worker]]\nname = "w"\nmodel = "{shallow_path(N_ALL_TOKENS)}"\n'
        f'mmproj = "{tmp_path}/mmproj.gguf"\n'
        "n_ctx = 8192\nn_slots = 2\nn_threads = 1\nkv_unified = true\n"
        f"chat_template = '''{TEMPLATE}'''\n"
    )
    gateway = Watch(endpoint)
    arguments = ("worker", "--config", str(config), "--connect", endpoint)
    process = Process([sys.executable, "-m", "worker.cli", *arguments])
    gateway.until(lambda: gateway.of(m.Ready))
    gateway.send(m.Welcome(gateway="test", heartbeat_s=BEAT_S), m.Opened())
    yield gateway, process
    process.signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.close()
    gateway.close()
    gateway.context.term()


def noise(side: int) -> bytes:
    """A PNG that cannot be compressed."""
    rows = b"".join(b"\0" + os.urandom(3 * side) for _ in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    packed = zlib.compress(rows, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", packed), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def deep_tool(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def doubling_tool(levels: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)
    }
    defs[f"a{levels}"] = {"type": "integer"}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": defs}
    return {"type": "function", "function": {"name": "g", "parameters": schema}}


def is_delta(envelope: m.Envelope) -> bool:
    return isinstance(envelope.payload, m.Delta)


def hostile(marker: str, first: int) -> list[m.Envelope]:
    """Messages of tasks `first` and on."""
    user = ({"role": "user", "content": "hi"},)
    params = SamplingParams(n_predict=1)
    seen = ({"role": "user", "content": f"look {marker} at it"},)
    loops = {"loop_forever": True}
    return [
        m.Envelope(m.TaskKey(first), m.Tokenize(content="a" * 2_000_000)),
        m.Envelope(
            m.TaskKey(first + 1), m.Tokenize(content="words and " * 30_000, with_pieces=True)
        ),
        m.Envelope(m.TaskKey(first + 2), m.Tokenize(content=tuple(range(100)) * 20_000)),
        m.Envelope(m.TaskKey(first + 3), m.Detokenize(tokens=(7,) * 2_000_000)),
        m.Envelope(
            m.TaskKey(first + 4),
            m.Generate(chat=m.Chat(messages=user, kwargs=loops), params=params),
        ),
        m.Envelope(m.TaskKey(first + 5), Render(chat=m.Chat(messages=user, kwargs=loops))),
        m.Envelope(
            m.TaskKey(first + 6),
            m.Generate(chat=m.Chat(messages=seen), media=(noise(4200),), params=params),
        ),
        m.Envelope(
            m.TaskKey(first + 7),
            m.Generate(chat=m.Chat(messages=user, tools=(deep_tool(200),)), params=params),
        ),
        m.Envelope(
            m.TaskKey(first + 8),
            m.Generate(
                chat=m.Chat(messages=user, tools=(doubling_tool(40),), tool_choice="required"),
                params=params,
            ),
        ),
        m.Envelope(m.TaskKey(first + 9), m.Generate(prompt="x" * 5_000_000, params=params)),
        m.Envelope(m.TaskKey(first + 10), m.Generate(prompt="hello", params=params)),
    ]


REFUSED = {4, 5, 7, 9}
"""Of the hostile messages, those that must be refused."""
N_TRIES = 3
"""What another program takes from the cores for a moment is not the worker's fault."""
WORST_LAG_S, LONGEST_GAP_S = 0.25, 1.0


def volley(gateway: Watch, marker: str, first: int) -> tuple[float, float]:
    """Send all hostile messages at once; return the worst lag and the stream's longest gap."""
    messages = hostile(marker, first)
    frames = gateway.written(messages)
    gateway.poll()  # what came while the frames were written
    gateway.deltas.clear()
    n_heartbeats = len(gateway.of(m.Heartbeat))
    for frame in frames:
        gateway.send_frame(frame)
    gateway.until(lambda: all(gateway.end_of(message.task.id) for message in messages), 120)
    ends = {one.task.id - first: type(gateway.end_of(one.task.id)) for one in messages}
    assert {task_id for task_id, kind in ends.items() if kind is m.Failed} == REFUSED
    lags = [one.stats.link_lag_s for one in gateway.of(m.Heartbeat)[n_heartbeats:]]
    silent = [b - a for a, b in zip(gateway.deltas, gateway.deltas[1:], strict=False)]
    return max(lags), max(silent)


def test_no_message_silences_the_heartbeat_or_a_stream(watch: tuple[Watch, Process]) -> None:
    gateway, process = watch
    ready = gateway.of(m.Ready)[0]
    assert isinstance(ready, m.Ready)
    params = SamplingParams(n_predict=-1, ignore_eos=True, temperature=0.0, stream=True)
    gateway.send(m.Envelope(m.TaskKey(1), m.Generate(prompt="Once upon a time", params=params)))
    gateway.until(lambda: len(gateway.deltas) > 5)
    for attempt in range(N_TRIES):
        lag_s, gap_s = volley(gateway, ready.card.media_marker, 10 + 100 * attempt)
        assert process.popen.poll() is None
        if lag_s < WORST_LAG_S and gap_s < LONGEST_GAP_S:
            break
    assert lag_s < WORST_LAG_S and gap_s < LONGEST_GAP_S, (lag_s, gap_s)
    gateway.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    gateway.until(lambda: gateway.end_of(1) is not None)
