"""The time of a request that has waited before its tasks were submitted."""

import asyncio
import time

import pytest

from gateway.http.waiting import keep_in_time
from gateway.pool.requests.record import RequestRecord
from gateway.pool.routing.origin import Origin, Urgency
from protocol.errors import ErrorCode, TaskError


def asked(ago_s: float, urgency: Urgency) -> Origin:
    record = RequestRecord(1, "r", "POST", "/completion", time.monotonic() - ago_s)
    return Origin(urgency=urgency, record=record)


def overloaded(message: str) -> TaskError:
    return TaskError(ErrorCode.OVERLOADED, message)


@pytest.mark.parametrize("ttft_s", [50.0, 70.0])
async def test_what_a_request_has_waited_already_counts(ttft_s: float) -> None:
    origin = asked(60.0, Urgency(timeout_s=60.05, ttft_s=ttft_s))
    with pytest.raises(TaskError, match=r"60\.05 s") as caught:
        async with asyncio.timeout(5.0):
            await keep_in_time((), origin.urgency, origin.spent_s, overloaded)
    assert caught.value.code is ErrorCode.DEADLINE


def test_the_first_token_has_the_time_that_is_left() -> None:
    assert 9.0 < asked(50.0, Urgency(ttft_s=60.0)).start_within_s <= 10.0
    assert asked(70.0, Urgency(ttft_s=60.0)).start_within_s == 0.0
    assert asked(70.0, Urgency()).start_within_s == float("inf")
    assert Origin(urgency=Urgency(ttft_s=60.0)).start_within_s == 60.0
