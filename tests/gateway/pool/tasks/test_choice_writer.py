"""What writes the choices of a stream: in which turn of the loop, and in which thread."""

import asyncio
import threading
from dataclasses import replace
from typing import cast

import pytest

from gateway.api.reply import ResponseFormatter
from gateway.api.sse import event
from gateway.http import event_stream
from gateway.http.event_stream import ChoiceWriter, EventStream
from protocol.wire.facts import TokenProb
from protocol.wire.messages import Delta
from tests.gateway.pool.tasks.test_stream import DONE, delta, stream


class Frames:
    """Stands for a client's event stream and a dialect's formatter; keeps what was written."""

    def __init__(self, *, is_read_by_chunk: bool = True) -> None:
        self.written: list[bytes] = []
        self.is_read_by_chunk = is_read_by_chunk

    async def write(self, frame: bytes) -> None:
        self.written.append(frame)

    def delta(self, _: int, message: Delta) -> bytes:
        return event(message.text.encode())

    def done(self, *_: object) -> bytes:
        return b"end"


@pytest.mark.parametrize("is_read_by_chunk", [True, False])
async def test_tokens_that_came_together_are_written_one_by_one(is_read_by_chunk: bool) -> None:
    task_stream, frames = stream(), Frames(is_read_by_chunk=is_read_by_chunk)
    task_stream.push_delta(delta("a", 1), 11.0)
    task_stream.push_delta(delta("b", 2), 11.0)
    task_stream.push(DONE)
    pumping = asyncio.create_task(
        ChoiceWriter(
            0, task_stream, cast(ResponseFormatter, frames), cast(EventStream, frames)
        ).run()
    )
    await asyncio.sleep(0)
    assert frames.written == (
        [event(b"a")] if is_read_by_chunk else [event(b"a"), event(b"b"), b"end"]
    )
    await pumping
    assert frames.written == [event(b"a"), event(b"b"), b"end"]


async def test_very_many_alternatives_are_written_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that pauses finds those of 300 tokens at once, which took the loop 0.5 s."""
    monkeypatch.setattr(event_stream, "MANY", 2)
    threads: list[bool] = []

    class Noted(Frames):
        def delta(self, index: int, message: Delta) -> bytes:
            threads.append(threading.current_thread() is threading.main_thread())
            return super().delta(index, message)

    one, frames = stream(), Noted()
    prob = TokenProb(id=1, piece=b"a", p=-1.0)
    one.push_delta(replace(delta("a", 1), probs=(prob,) * 2), 11.0)
    one.push_delta(replace(delta("b", 2), probs=(prob,) * 3), 11.0)
    one.push_delta(replace(delta("c", 3), prompt=(prob,) * 3), 11.0)
    one.push(DONE)
    await ChoiceWriter(0, one, cast(ResponseFormatter, frames), cast(EventStream, frames)).run()
    assert threads == [True, False, False]
    assert frames.written == [event(b"a"), event(b"b"), event(b"c"), b"end"]


async def test_very_many_biases_are_written_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ends of 64 choices with 8,192 biases each took the loop 130 ms."""
    monkeypatch.setattr(event_stream, "_MANY_BIASES", 2)
    threads: list[bool] = []

    class Noted(Frames):
        def done(self, *_: object) -> bytes:
            threads.append(threading.current_thread() is threading.main_thread())
            return super().done()

    for n_biases in (2, 3):
        one, frames = stream(), Noted()
        one.push(replace(DONE, biases=((1, -1.0),) * n_biases))
        await ChoiceWriter(0, one, cast(ResponseFormatter, frames), cast(EventStream, frames)).run()
        assert frames.written == [b"end"]
    assert threads == [True, False]
