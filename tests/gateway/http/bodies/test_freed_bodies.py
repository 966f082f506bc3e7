"""What a request held is free as soon as it has ended, without a collection of garbage."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from gateway.http.bodies.body import ClientGone
from gateway.http.disconnect import disconnected, guarded, together


class Body:
    """Stands for what a request holds."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def _gone() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    await disconnected(receive)


async def _wait() -> None:
    await asyncio.Event().wait()


async def _fail() -> None:
    await asyncio.sleep(0)
    raise ValueError


Work = Callable[[], Coroutine[Any, Any, Any]]
ENDS: dict[str, tuple[Work, type[Exception]]] = {
    "client gone": (lambda: guarded(_wait(), _gone()), ClientGone),
    "client of two tasks gone": (
        lambda: guarded(together([_wait(), _wait()]), _gone()),
        ClientGone,
    ),
    "work failed": (lambda: guarded(_fail(), _wait()), ValueError),
    "one of two failed": (lambda: guarded(together([_fail(), _wait()]), _wait()), ValueError),
}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("end", ENDS)
async def test_an_ended_request_is_freed_at_once(end: str) -> None:
    """The body of a client that had hung up, 64 MiB perhaps, stayed until the next collection."""
    work, error = ENDS[end]
    bodies: list[weakref.ref[Body]] = []

    async def handle() -> None:
        body = Body()
        bodies.append(weakref.ref(body))
        await work()

    async def answer() -> None:
        with pytest.raises(error):
            await handle()

    await asyncio.create_task(answer())
    for _ in range(5):
        await asyncio.sleep(0)
    assert bodies[0]() is None
