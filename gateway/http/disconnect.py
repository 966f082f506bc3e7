"""Work that ends early when its client leaves.

Nothing tells a handler that waits for a worker that its client is gone: it must watch `receive`
itself. A watcher never returns: it raises.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from starlette.types import Receive

from gateway.http.bodies.body import ClientGone
from gateway.pool.tasks.stream import TaskStream

T = TypeVar("T")


async def disconnected(receive: Receive) -> None:
    """Wait for the client to leave, then raise `ClientGone`."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


async def guarded(work: Coroutine[Any, Any, T], *watchers: Coroutine[Any, Any, None]) -> T:
    """Return the result of `work`, or raise what a watcher raises first."""
    task = asyncio.ensure_future(work)
    guards = [asyncio.ensure_future(watcher) for watcher in watchers]
    error: BaseException | None = None
    try:
        await asyncio.wait([task, *guards], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            error = next((guard.exception() for guard in guards if guard.done()), None)
            if error is not None:
                raise error
        return await task
    finally:
        # Cancelled, not awaited: Hypercorn may be cancelling us, and an await here would be cut.
        _cancel(task, *guards)
        # An exception refers to this frame: if the frame referred to who raised it, the whole
        # request would stay in memory until the next collection of garbage.
        guards.clear()
        del task, error


def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
        task.add_done_callback(_retrieve)


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Read a task's exception, so that asyncio does not log it as never retrieved.

    A cancelled task can still fail with another exception while it is cancelled.
    """
    if not task.cancelled():
        task.exception()


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once; the first failure cancels the others and is raised as itself."""
    works = list(works)
    if len(works) == 1:
        return [await works.pop()]
    group = asyncio.TaskGroup()
    tasks: list[asyncio.Task[T]] = []
    error: BaseException | None = None
    try:
        try:
            async with group:
                tasks += [group.create_task(work) for work in works]
        except BaseExceptionGroup as failures:
            error = failures.exceptions[0]
            failures.__traceback__ = None  # its frames refer to it
        if error is not None:
            raise error  # not above, where the group of failures would be its context
        return [task.result() for task in tasks]
    finally:  # as in `guarded`; the group of tasks refers to the one that it runs in
        works.clear()
        tasks.clear()
        del error, group


async def answered(stream: TaskStream, receive: Receive, kind: type[T]) -> T:
    """Wait for the terminal message of a task beside generation; give it up with the client."""
    (result,) = await all_answered([stream], receive, kind)
    return result


async def all_answered(
    streams: Sequence[TaskStream],
    receive: Receive,
    kind: type[T],
    *watchers: Coroutine[Any, Any, None],
) -> list[T]:
    """Wait for the terminal messages of several tasks; the first failure gives all of them up.

    So does an error of a watcher.
    """
    try:
        work = together(stream.result() for stream in streams)
        results = await guarded(work, disconnected(receive), *watchers)
    finally:
        for stream in streams:
            stream.close()
    found: list[T] = [result for result in results if isinstance(result, kind)]
    assert len(found) == len(results), results
    return found
