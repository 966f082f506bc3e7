"""Sends a waiting request its place in the queue, and ends a request whose time is over."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Never

from gateway.http.event_stream import EventStream
from gateway.http.origin.urgency import TIMEOUT_HEADER, TTFT_HEADER
from gateway.pool.dispatch.queue_limits import QueuePlace
from gateway.pool.routing.origin import Origin, Urgency
from gateway.pool.tasks.stream import TaskStream
from gateway.pool.tasks.task import TaskState
from protocol.errors import ErrorCode, TaskError

NOTICE_S = 1.0
"""Wait before a stream gets its first queue position, and minimum time between two positions."""

_PREPARE_AGAIN_S = 5
"""`Retry-After` of a request whose model was still loading, or whose media were being fetched."""

Refuse = Callable[[str], TaskError]


async def keep_preparing_in_time(urgency: Urgency, spent_s: float, what: str) -> Never:
    """Raise `TaskError` when a request has no time left for what comes before its tasks."""
    if math.isfinite(urgency.start_s):
        await asyncio.sleep(urgency.start_s - spent_s)
        header = TTFT_HEADER if urgency.ttft_s < urgency.timeout_s else TIMEOUT_HEADER
        message = f"{what} within {urgency.start_s:g} s, the limit of {header}"
        raise TaskError(ErrorCode.OVERLOADED, message, detail={"retry_after_s": _PREPARE_AGAIN_S})
    await _forever()


def in_time(
    streams: Sequence[TaskStream], origin: Origin, refuse: Refuse
) -> list[Coroutine[Any, Any, None]]:
    """Return what ends a request when its time is over, if it has such a time."""
    if math.isinf(origin.urgency.start_s):
        return []
    return [keep_in_time(streams, origin.urgency, origin.spent_s, refuse)]


async def keep_in_time(
    streams: Sequence[TaskStream], urgency: Urgency, spent_s: float, refuse: Refuse
) -> Never:
    """Raise `TaskError` when a request's time is over; of `refuse` if a choice has no slot yet.

    `spent_s` of it were over before the tasks were submitted.
    """
    if urgency.ttft_s < urgency.timeout_s:
        await asyncio.sleep(urgency.ttft_s - spent_s)
        spent_s = max(spent_s, urgency.ttft_s)
        if _waits(streams):
            limit = f"{urgency.ttft_s * 1000:g} ms"
            raise refuse(f"No slot became free within {limit}, the limit of {TTFT_HEADER}")
    if math.isfinite(urgency.timeout_s):
        await asyncio.sleep(urgency.timeout_s - spent_s)
        message = (
            f"The request took longer than {urgency.timeout_s:g} s, the limit of {TIMEOUT_HEADER}"
        )
        raise refuse(message) if _waits(streams) else TaskError(ErrorCode.DEADLINE, message)
    await _forever()


async def send_places(
    streams: Sequence[TaskStream],
    events: EventStream,
    place: Callable[[int], QueuePlace | None],
) -> Never:
    """Write the place in the queue as a comment, each second until one of the tasks has a slot."""
    wait_s = NOTICE_S
    while True:
        await asyncio.sleep(wait_s)
        if not all(stream.task.state is TaskState.WAITING for stream in streams):
            break
        found = place(streams[0].task_id)
        if found is not None:
            await events.comment(comment_of(found))
            wait_s = max(NOTICE_S, found.n_waiting / _PLACES_PER_S)
    await _forever()


_PLACES_PER_S = 200
"""Maximum queue positions a second, over all streams: each looks at all waiting tenants."""


def comment_of(place: QueuePlace) -> bytes:
    """Write a place as a comment of an event stream."""
    wait = f" wait_s={place.wait_s:.1f}" if place.wait_s is not None else ""
    return f": queue position={place.position}{wait}\n\n".encode()


def _waits(streams: Sequence[TaskStream]) -> bool:
    """Return whether a choice has not started and has no slot."""
    return any(
        stream.task.state is TaskState.WAITING and not stream.answer.has_started
        for stream in streams
    )


async def _forever() -> Never:
    await asyncio.get_running_loop().create_future()
    raise AssertionError
