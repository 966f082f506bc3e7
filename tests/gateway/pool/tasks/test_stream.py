"""The mailbox of one task."""

import asyncio
import weakref
from collections.abc import Sequence

import pytest

from gateway.metrics.counters import ModelLatencies
from gateway.pool.tasks import stream as streams
from gateway.pool.tasks.deltas import merge
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.stream import DeltaOffers, TaskStream, Write
from gateway.pool.tasks.task import RouteReason, Task
from protocol.errors import ErrorCode, TaskError
from protocol.wire.facts import Timings, TokenProb
from protocol.wire.messages import (
    Delta,
    Done,
    Failed,
    Finish,
    Generate,
    Started,
    TaskMessage,
)
from protocol.wire.sampling import SamplingParams


def stream(offers: DeltaOffers | None = None, closed: list[TaskStream] | None = None) -> TaskStream:
    return TaskStream(
        Task(TaskSpec(task_id=1, model="m"), 10.0),
        Generate(prompt="x", params=SamplingParams()),
        latencies=ModelLatencies(),
        offers=offers or DeltaOffers(),
        on_close=(closed if closed is not None else []).append,
    )


def delta(text: str, n: int) -> Delta:
    return Delta(text=text, tokens=(n,), n_predicted=n)


DONE = Done(finish=Finish.EOS)


@pytest.mark.parametrize("is_over", [False, True])
async def test_many_deltas_that_nobody_fetched_are_merged(is_over: bool) -> None:
    task_stream, text = stream(), "abcdefghi"
    for n, letter in enumerate(text, start=1):
        task_stream.push_delta(delta(letter, n), 11.0)
    if is_over:
        task_stream.push(DONE)
    tokens = tuple(range(1, 10))
    assert await task_stream.receive() == Delta(text=text, tokens=tokens, n_predicted=9)
    task_stream.push(DONE)
    assert await task_stream.receive() is DONE
    assert not task_stream.has_mail


@pytest.mark.parametrize("is_over", [False, True])
async def test_few_deltas_that_came_together_are_fetched_one_by_one(is_over: bool) -> None:
    task_stream = stream()
    for n, letter in enumerate("abc", start=1):
        task_stream.push_delta(delta(letter, n), 11.0)
    if is_over:
        task_stream.push(DONE)
    got = [await task_stream.receive() for _ in range(3)]
    assert got == [delta("a", 1), delta("b", 2), delta("c", 3)]
    assert task_stream.has_mail == is_over
    task_stream.push(DONE)
    assert await task_stream.receive() is DONE


async def test_a_delta_is_never_merged_across_another_message() -> None:
    task_stream = stream()
    started = Started(slot=0, n_prompt=1)
    task_stream.push(started)
    task_stream.push_delta(delta("a", 1), 11.0)
    task_stream.push(started)
    task_stream.push_delta(delta("b", 2), 11.0)
    got = [await task_stream.receive() for _ in range(4)]
    assert got == [started, delta("a", 1), started, delta("b", 2)]


def test_merging_keeps_probabilities_and_the_last_timings() -> None:
    prob = TokenProb(id=1, piece=b"a", p=-0.5)
    timings = Timings(predicted_n=1)
    merged = merge(
        [
            Delta(text="a", probs=(prob,), n_predicted=1, timings=timings),
            Delta(text="b", probs=(prob,), n_predicted=2),
        ]
    )
    assert merged == Delta(text="ab", probs=(prob, prob), n_predicted=2, timings=timings)


def test_a_slow_reader_costs_the_memory_of_its_text() -> None:
    task_stream = stream()
    for n in range(10_000):
        task_stream.push_delta(delta("x", n), 11.0)
    assert len(task_stream._deltas) < 100


async def test_a_waiting_reader_is_woken() -> None:
    task_stream = stream()
    reader: asyncio.Task[TaskMessage] = asyncio.create_task(task_stream.receive())
    await asyncio.sleep(0)
    task_stream.push_delta(delta("a", 1), 11.0)
    assert await reader == delta("a", 1)


async def test_result_skips_to_the_terminal_message() -> None:
    task_stream = stream()
    task_stream.push(Started(slot=0, n_prompt=1))
    task_stream.push_delta(delta("a", 1), 11.0)
    task_stream.push(DONE)
    assert await task_stream.result() is DONE


async def test_a_failure_is_raised_after_what_came_before_it() -> None:
    task_stream = stream()
    task_stream.push_delta(delta("a", 1), 11.0)
    task_stream.push(
        Failed(
            code=ErrorCode.CONTEXT_EXCEEDED, message="too long", param="prompt", detail={"n_ctx": 8}
        )
    )
    assert await task_stream.receive() == delta("a", 1)
    with pytest.raises(TaskError, match="too long") as caught:
        await task_stream.receive()
    error = caught.value
    assert (error.code, error.param, error.detail) == (
        ErrorCode.CONTEXT_EXCEEDED,
        "prompt",
        {"n_ctx": 8},
    )


async def test_an_error_wakes_the_reader() -> None:
    task_stream = stream()
    reader = asyncio.create_task(task_stream.receive())
    await asyncio.sleep(0)
    task_stream.fail(TaskError(ErrorCode.UNAVAILABLE, "worker lost"))
    with pytest.raises(TaskError, match="worker lost"):
        await reader


def test_close_tells_the_pool_once() -> None:
    closed: list[TaskStream] = []
    task_stream = stream(closed=closed)
    task_stream.close()
    task_stream.close()
    assert closed == [task_stream]
    assert repr(task_stream) == "<TaskStream 1 closed at queue n_predicted=0>"


def test_close_after_the_end_tells_nobody() -> None:
    closed: list[TaskStream] = []
    task_stream = stream(closed=closed)
    task_stream.push(DONE)
    task_stream.close()
    assert closed == []


async def test_close_keeps_nothing() -> None:
    task_stream = stream()
    task_stream.push(Started(slot=0, n_prompt=1))
    task_stream.push_delta(delta("a", 1), 11.0)
    task_stream.close()
    task_stream.push(DONE)
    assert task_stream._mail == []
    with pytest.raises(AssertionError):
        await task_stream.receive()


def test_times_are_measured_from_the_submission() -> None:
    task_stream = stream()
    task = task_stream.task
    assert (task.queued_s, task.ttft_s, task_stream.answer.itl_s) == (0.0, 0.0, 0.0)
    task.assign("w0:1", "w0", RouteReason.LOAD, 10.5)
    task_stream.push_delta(delta("a", 1), 11.0)
    task_stream.push_delta(delta("b", 2), 11.25)
    task_stream.push_delta(delta("c", 3), 11.5)
    assert (task.queued_s, task.ttft_s, task_stream.answer.itl_s) == (0.5, 1.0, 0.25)
    assert repr(task_stream.latencies.itl) == "<Histogram n=2 total=0.500>"


class Taker:
    """Takes what it is offered while `takes`; fails, then or when writing, if there is an error."""

    def __init__(
        self, takes: bool | Exception = True, log: list[str] | None = None, fault: str = ""
    ) -> None:
        self.takes = takes
        self.offered: list[list[Delta]] = []
        self.log = log if log is not None else []
        self.fault = fault

    def __call__(self, deltas: Sequence[Delta]) -> Write | None:
        self.offered.append(list(deltas))
        if isinstance(self.takes, Exception):
            raise self.takes
        text = "".join(delta.text for delta in deltas)
        self.log.append(f"format {text}")
        return (self.write, text.encode()) if self.takes else None

    def write(self, data: bytes) -> None:
        if self.fault:
            raise ValueError(self.fault)
        self.log.append(f"write {data.decode()}")


async def reading(task_stream: TaskStream, take: Taker) -> "asyncio.Task[TaskMessage]":
    """Let a reader wait."""
    reader = asyncio.create_task(task_stream.receive(take))
    await asyncio.sleep(0)
    return reader


async def test_what_comes_in_one_turn_is_offered_together_and_wakes_nobody() -> None:
    task_stream, take = stream(), Taker()
    reader = await reading(task_stream, take)
    for letter in "ab":
        task_stream.push_delta(delta(letter, 1), 11.0)
    await asyncio.sleep(0)
    task_stream.push_delta(delta("c", 3), 11.0)
    await asyncio.sleep(0)
    assert take.offered == [[delta("a", 1), delta("b", 1)], [delta("c", 3)]]
    for n in range(9):
        task_stream.push_delta(delta("x", n), 11.0)
    await asyncio.sleep(0)
    assert [delta.text for delta in take.offered[-1]] == ["x" * 9]
    assert not reader.done() and not task_stream.has_mail
    task_stream.push(DONE)
    assert await reader is DONE


async def test_what_is_not_taken_is_fetched_with_what_follows() -> None:
    task_stream, take = stream(), Taker(takes=False)
    reader = await reading(task_stream, take)
    task_stream.push_delta(delta("a", 1), 11.0)
    await asyncio.sleep(0)
    task_stream.push_delta(delta("b", 2), 11.0)
    task_stream.push(DONE)
    assert await reader == delta("a", 1)
    assert [await task_stream.receive(take), await task_stream.receive(take)] == [
        delta("b", 2),
        DONE,
    ]
    assert take.offered == [[delta("a", 1)]]


async def test_a_closed_stream_holds_its_reader_no_longer() -> None:
    """Each stream of a client stayed in memory until a collection of garbage."""
    task_stream, take = stream(), Taker()
    reader, held = await reading(task_stream, take), weakref.ref(take)
    task_stream.push(DONE)
    await reader
    task_stream.close()
    del take, reader
    assert held() is None


async def test_an_end_in_the_same_turn_overtakes_nothing() -> None:
    task_stream, take = stream(), Taker()
    reader = await reading(task_stream, take)
    task_stream.push_delta(delta("a", 1), 11.0)
    task_stream.push(DONE)
    assert [await reader, await task_stream.receive(take)] == [delta("a", 1), DONE]
    assert take.offered == []


async def test_a_taker_that_fails_fails_its_reader() -> None:
    task_stream = stream()
    reader = await reading(task_stream, Taker(takes=ValueError("a fault of ours")))
    task_stream.push_delta(delta("a", 1), 11.0)
    with pytest.raises(ValueError, match="a fault"):
        await reader


async def test_all_streams_are_formatted_before_the_first_is_written() -> None:
    offers, log = DeltaOffers(), list[str]()
    streams = [stream(offers) for _ in range(2)]
    readers = [await reading(task_stream, Taker(log=log)) for task_stream in streams]
    for letter, task_stream in zip("ab", streams, strict=True):
        task_stream.push_delta(delta(letter, 1), 11.0)
    await asyncio.sleep(0)
    assert log == ["format a", "format b", "write a", "write b"]
    for task_stream, reader in zip(streams, readers, strict=True):
        task_stream.push(DONE)
        assert await reader is DONE


async def test_a_write_that_fails_fails_its_reader_and_no_other() -> None:
    offers, log = DeltaOffers(), list[str]()
    bad, good = (stream(offers) for _ in range(2))
    failing = await reading(bad, Taker(fault="closed"))
    other = await reading(good, Taker(log=log))
    for task_stream in (bad, good):
        task_stream.push_delta(delta("a", 1), 11.0)
    with pytest.raises(ValueError, match="closed"):
        await failing
    assert log == ["format a", "write a"] and not other.done()
    good.push(DONE)
    assert await other is DONE


async def test_a_reader_that_was_cancelled_is_offered_nothing() -> None:
    task_stream, take = stream(), Taker()
    reader = await reading(task_stream, take)
    reader.cancel()
    task_stream.push_delta(delta("a", 1), 11.0)
    await asyncio.sleep(0)
    assert take.offered == []
    task_stream.close()


def test_a_request_is_looked_through_once_however_often_a_step_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[TaskMessage] = []

    def longest(request: TaskMessage) -> int:
        asked.append(request)
        return 7

    monkeypatch.setattr(streams, "longest_prompt", longest)
    task_stream = stream()
    assert [task_stream.longest_prompt() for _ in range(3)] == [7, 7, 7]
    assert asked == [task_stream.request]
