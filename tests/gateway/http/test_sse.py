"""Event streams: framing, late headers, pings, impatience."""

import asyncio
import gc
from typing import Any

import pytest
from starlette.types import Message

from gateway.api.sse import PING, event
from gateway.http.bodies.body import ClientGone
from gateway.http.disconnect import guarded, together
from gateway.http.event_stream import EventStream


class Sink:
    """A `send` that keeps what it gets; `blocked` makes it hang."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.blocked = False
        self.changed = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        self.changed.set()
        if self.blocked:
            await asyncio.Event().wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def test_an_event_is_one_data_line() -> None:
    assert event(b"{}") == b"data: {}\n\n"


async def test_headers_wait_for_the_first_frame_and_come_once() -> None:
    sink = Sink()
    events = EventStream(sink, 15, 30)
    await events.write(b"")
    assert not events.is_open and not sink.messages
    await asyncio.gather(events.write(b"a"), events.write(b"b"))
    await events.finish()
    kinds = [message["type"] for message in sink.messages]
    assert kinds == ["http.response.start"] + ["http.response.body"] * 3
    assert sink.messages[-1]["more_body"] is False
    headers = dict(sink.messages[0]["headers"])
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"cache-control"] == b"no-cache"


async def test_silence_is_filled_with_comments() -> None:
    sink = Sink()
    heartbeat = asyncio.create_task(EventStream(sink, 0.01, 30).keep_alive())
    async with asyncio.timeout(30):
        while sink.body.count(PING) < 3:
            sink.changed.clear()
            await sink.changed.wait()
    heartbeat.cancel()
    assert sink.messages[0]["status"] == 200


@pytest.mark.parametrize("ping_interval_s", [0, 0.01, 10])
async def test_a_reader_that_does_not_read_is_given_up(ping_interval_s: float) -> None:
    sink = Sink()
    events = EventStream(sink, ping_interval_s, 0.05)
    await events.open()
    sink.blocked = True
    with pytest.raises(ClientGone):
        async with asyncio.timeout(30):
            await guarded(events.write(b"x"), events.keep_alive())


async def test_a_stuck_comment_is_given_up_too() -> None:
    sink = Sink()
    events = EventStream(sink, 0.01, 0.02)
    await events.open()
    sink.blocked = True
    with pytest.raises(ClientGone):
        async with asyncio.timeout(30):
            await events.keep_alive()


async def _never() -> Any:
    await asyncio.Event().wait()


async def _fail(error: Exception) -> Any:
    raise error


async def _give(value: int) -> int:
    return value


async def test_work_wins_over_a_watcher_that_ends_with_it() -> None:
    assert await guarded(_give(3), _fail(ClientGone())) == 3


async def test_a_watcher_ends_the_work() -> None:
    with pytest.raises(ClientGone):
        await guarded(_never(), _never(), _fail(ClientGone()))


async def test_the_first_failure_of_several_is_raised_as_itself() -> None:
    with pytest.raises(ValueError, match="x"):
        await together([_never(), _fail(ValueError("x"))])
    assert await together([_give(1), _give(2)]) == [1, 2]


async def test_work_that_fails_while_it_is_cancelled_is_not_logged_as_lost() -> None:
    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))

    async def fails_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("the server is shutting down")

    async def leaves() -> None:
        await asyncio.sleep(0)
        raise ClientGone

    with pytest.raises(ClientGone):
        await guarded(fails_when_cancelled(), leaves())
    for _ in range(3):  # the cancelled task runs, ends and is forgotten
        await asyncio.sleep(0)
    gc.collect()
    assert reports == []
