"""Peers with a worker's key that send what no worker sends: the pool goes on, and blocks them."""

import asyncio
import math
from dataclasses import replace
from functools import partial
from typing import Any

import msgpack
import pytest

from gateway.pool.network import connections, router_socket, worker_connection
from gateway.pool.network.bad_frames import BadFrames
from gateway.pool.network.name_queue import NameQueue
from gateway.pool.plausible import MAX_UNSEEN, implausible, is_answer, longest_prompt, overread
from gateway.pool.workers.worker import Worker
from protocol.errors import ErrorCode
from protocol.wire import codec, facts
from protocol.wire import messages as m
from protocol.wire.cached import Cached
from protocol.wire.sampling import SamplingParams
from protocol.wire.sharing import Recall, SettingsReport
from protocol.wire.side_tasks import Embed, Embedded, Rerank, Reranked, SlotActed
from tests.fakes.echo import FakeEngine, FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.pool.network.fleet import Fleet, answers
from tests.hostile.thief import CARDS

pytestmark = pytest.mark.usefixtures("looks_always")

HUGE = (1 << 63) - 1
CARD = facts.ModelCard(name="m", path="", n_slots=2, n_ctx=64, n_ctx_total=128)


@pytest.mark.parametrize("changed", CARDS)
def test_no_model_has_such_a_card(changed: dict[str, Any]) -> None:
    card = replace(CARD, **changed)
    assert implausible(m.Ready(card=card))
    assert not implausible(m.Ready(card=CARD, granted=-3))


IMPLAUSIBLE = [
    m.Heartbeat(step=1, busy=0, granted=HUGE),
    m.Heartbeat(step=1, busy=0, others=-HUGE),
    m.Heartbeat(step=1, busy=0, stall_s=math.nan),
    m.Started(slot=HUGE, n_prompt=1),
    m.Started(slot=0, n_prompt=-1),
    m.PromptRead(n_read=HUGE),
    m.Done(finish=m.Finish.EOS, n_predicted=HUGE),
    m.Done(finish=m.Finish.EOS, slot=2**64 - 1),
    m.Done(finish=m.Finish.EOS, timings=facts.Timings(prompt_ms=math.nan)),
    m.Done(finish=m.Finish.EOS, usage=facts.Usage(n_read=-5)),
    m.Failed(code=ErrorCode.INTERNAL, message="", usage=facts.Usage(n_predicted=HUGE)),
    Embedded(vectors=(b"",), n_embd=1, n_tokens=(HUGE,)),
    SlotActed(n_tokens=-1),
    SlotActed(n_tokens=1, n_bytes=HUGE),
    SlotActed(n_tokens=1, time_ms=math.nan),
    Recall(n=HUGE),
    SettingsReport(system_version=(HUGE, "z")),
]


@pytest.mark.parametrize("message", IMPLAUSIBLE, ids=lambda one: type(one).__name__)
def test_such_numbers_cannot_be(message: m.Message | m.TaskMessage) -> None:
    assert implausible(message)


THREE = Embed(inputs=("a", "b", "c"))
VECTORS = Embedded(vectors=(bytes(8),) * 3, n_embd=2, n_tokens=(1, 1, 1))
RANK = Rerank(query="a", documents=("b", "c"))
PIECES = m.Tokenize(content="a", with_pieces=True)
UNFIT: list[tuple[m.TaskMessage, m.Terminal]] = [
    (THREE, replace(VECTORS, n_embd=0)),
    (THREE, replace(VECTORS, n_embd=-2)),
    (THREE, replace(VECTORS, vectors=(bytes(8),) * 2)),
    (THREE, replace(VECTORS, vectors=(bytes(7), bytes(8), bytes(8)))),
    (THREE, replace(VECTORS, vectors=(b"", bytes(8), bytes(8)))),
    (THREE, replace(VECTORS, n_tokens=(1,))),
    (THREE, replace(VECTORS, vectors=(bytes(16), bytes(9), b""), is_pooled=False)),
    (RANK, Reranked(scores=(1.0,), n_tokens=1)),
    (RANK, Reranked(scores=(1.0, 2.0, 3.0), n_tokens=1)),
    (RANK, Reranked(scores=(1.0, math.nan), n_tokens=1)),
    (RANK, Reranked(scores=(math.inf, 1.0), n_tokens=1)),
    (PIECES, m.Tokenized.of((1, 2), (b"a",))),
    (PIECES, m.Tokenized.of((1, 2))),
    (m.Tokenize(content="a"), m.Tokenized.of((1,), (b"a",))),
    (m.Tokenize(content="a"), m.Tokenized(tokens=bytes(7))),
]


@pytest.mark.parametrize(("request_", "end"), UNFIT, ids=lambda one: type(one).__name__)
def test_an_answer_has_a_number_for_each_part_of_its_request(
    request_: m.TaskMessage, end: m.Terminal
) -> None:
    assert not is_answer(request_, end)


def test_answers_of_their_requests_size_are_taken() -> None:
    assert is_answer(THREE, VECTORS)
    assert is_answer(THREE, replace(VECTORS, vectors=(b"", *[bytes(16)] * 2), is_pooled=False))
    assert is_answer(RANK, Reranked(scores=(0.5, -1e38), n_tokens=1))
    assert is_answer(PIECES, m.Tokenized.of((1,), (b"a",)))
    assert is_answer(m.Tokenize(content="a"), m.Tokenized.of((1,)))
    assert is_answer(RANK, m.Failed(code=ErrorCode.INTERNAL, message=""))


@pytest.mark.parametrize("number", [2**64 - 1, -1, 2])
async def test_slots_that_a_worker_does_not_have_are_not_shown(
    fleet: Fleet, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = FakeOptions(name="bad", n_slots=2)
    async with FakeWorker(fleet.endpoint, options, fleet.keys("bad")):
        await fleet.until(1)
        report = facts.SlotReport(id=number, is_processing=True)
        monkeypatch.setattr(FakeEngine, "reports", lambda _: (report,))
        assert [one.id for one, _ in await fleet.pool.calls.slots()] == [0, 1]


@pytest.mark.parametrize(
    "stats",
    [
        facts.Stats(n_prompt=-1),
        facts.Stats(step_s=math.inf),
        facts.Stats(prompt_s=-0.001),
        facts.Stats(accepted_at=(1,) * 100_000),
    ],
)
async def test_counters_that_cannot_be_are_left_out_and_the_worker_stays(
    fleet: Fleet, stats: facts.Stats
) -> None:
    async with fleet.worker(fleet.keys("odd"), "odd") as odd:
        await fleet.until(1)
        good = facts.Stats(n_prompt=7, prompt_s=0.5)
        await odd.send(m.Heartbeat(step=1, busy=0, stats=good))
        await odd.send(m.Heartbeat(step=2, busy=0, stats=stats))
        await fleet.logged("counters implausible worker=odd")
        await answers(fleet)


def test_what_workers_say_can_be() -> None:
    for message in (
        m.Heartbeat(step=0, busy=0, granted=-9),
        m.Started(slot=-1, n_prompt=0),
        m.Done(finish=m.Finish.NONE),
        m.Ping(),
    ):
        assert not implausible(message)


async def test_a_report_that_cannot_be_costs_the_connection(fleet: Fleet) -> None:
    async with (
        fleet.worker(fleet.keys("good"), "good"),
        fleet.worker(fleet.keys("bad"), "bad") as b,
    ):
        await fleet.until(2)
        await b.send(m.Heartbeat(step=1, busy=0, granted=HUGE))
        await fleet.logged("Heartbeat: granted is out of range")
        await fleet.logged("worker lost worker=bad")
        await answers(fleet)


def test_no_worker_is_sent_more_than_its_card_says() -> None:
    worker = Worker("w:1:0.0", "w", "m", {})
    worker.card = CARD
    worker.share(m.Heartbeat(step=1, busy=0, granted=1000))
    assert worker.n_credits == CARD.n_slots
    worker.share(m.Heartbeat(step=1, busy=0, granted=-1))
    assert worker.n_credits == CARD.n_slots - 1


@pytest.mark.parametrize(
    "end",
    [
        m.Done(finish=m.Finish.EOS, n_predicted=1 << 30),
        m.Done(finish=m.Finish.EOS, timings=facts.Timings(predicted_n=1 << 30)),
        m.Failed(code=ErrorCode.INTERNAL, message="", usage=facts.Usage(n_predicted=1 << 30)),
        m.Tokenized.of((1,)),
        m.Progress(total=1, cached=0, processed=1, time_ms=math.nan),
        m.Started(slot=0, n_prompt=1 << 30),
        m.PromptRead(n_read=1 << 30),
        m.Done(finish=m.Finish.EOS, n_prompt=1 << 30),
        m.Failed(code=ErrorCode.INTERNAL, message="", usage=facts.Usage(n_read=1 << 30)),
    ],
    ids=(
        *("count", "timings", "usage", "another kind", "progress"),
        *("prompt", "read", "prompt at the end", "read at the end"),
    ),
)
async def test_an_answer_goes_on_elsewhere_when_its_worker_says_what_cannot_be(
    fleet: Fleet, end: m.TaskMessage
) -> None:
    options = FakeOptions(name="bad", free_running=False)
    async with FakeWorker(fleet.endpoint, options, fleet.keys("bad")) as bad:
        await fleet.until(1)
        asked = asyncio.create_task(answers(fleet))
        await bad.got(m.Generate)
        await bad.send(m.Envelope(bad.envelopes[-1].task, end))
        await fleet.logged("frame unreadable worker=bad")
        await fleet.logged("worker lost worker=bad")
    async with fleet.worker(fleet.keys("good"), "good"):
        await asked  # it goes on there
    assert fleet.pool.dispatcher.routing.answer_tokens("fake") < 1000


def test_no_prompt_is_longer_than_its_bytes_and_what_a_template_adds() -> None:
    long, params = "漢字" * 50_000, SamplingParams()
    messages = ({"role": "user", "content": long},)
    tools = ({"type": "function", "function": {"name": long}},)
    for request in (
        m.Generate(prompt=long, params=params),
        m.Generate(prompt=(long, 1, 2), params=params),
        m.Generate(prompt=tuple(range(300_000)), params=params),
        m.Generate(chat=m.Chat(messages=messages), params=params),
        m.Generate(chat=m.Chat(tools=tools), params=params),
        m.Generate(prompt="", infill=m.Infill(suffix=long), params=params),
        Embed(inputs=(long, (1, 2))),
        Rerank(query=long[:1000], documents=("",) * 100),
    ):
        longest = partial(longest_prompt, request)
        started = m.Started(slot=0, n_prompt=300_000)
        assert not overread(started, longest, 0), request
        assert overread(replace(started, n_prompt=1 << 24), longest, 0) == "n_prompt"
        read = m.PromptRead(n_read=1 << 24)
        assert not overread(read, longest, 0), "it was read again for others"
        assert overread(replace(read, n_read=1 << 30), longest, 0) == "n_read"


async def test_the_count_in_a_piece_of_an_answer_is_believed_only_as_far_as_can_be(
    fleet: Fleet,
) -> None:
    options = FakeOptions(name="bad", free_running=False)
    async with FakeWorker(fleet.endpoint, options, fleet.keys("bad")) as bad:
        await fleet.until(1)
        stream = fleet.generate("a b")
        await bad.got(m.Generate)
        key = bad.envelopes[-1].task
        await bad.send(m.Envelope(key, m.Delta(text="a", tokens=(1,), n_predicted=HUGE)))
        await stream.receive()
        stream.close()
        await fleet.holds(lambda: not fleet.pool.transport.streams.by_id)
    assert 0 < stream.answer.n_reported <= MAX_UNSEEN + 1
    assert sum(fleet.metrics.keys.rows.values()) <= MAX_UNSEEN + 10


async def test_a_large_frame_of_a_worker_without_tasks_is_not_read(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_UNASKED_BYTES", 10_000)
    async with (
        fleet.worker(fleet.keys("good"), "good"),
        fleet.worker(fleet.keys("bad"), "bad") as b,
    ):
        await fleet.until(2)
        await b.send_raw(b"\x92\x01\x91\x92\xa4ping\x81\xa1a\xdc\x40\x00" + bytes(0x4000))
        await fleet.logged("bytes from a worker without a task")
        await fleet.logged("worker lost worker=bad")
        await answers(fleet)


async def test_what_a_worker_gives_as_a_reason_makes_no_long_line(fleet: Fleet) -> None:
    """One of 8 MB of control characters held the loop for seconds."""
    long = "\x1b" * 100_000
    async with fleet.worker(fleet.keys("good"), "good"):
        async with fleet.worker(fleet.keys("bad"), "bad") as bad:
            await fleet.until(2)
            await bad.send(m.Bye(reason=long))
            await fleet.logged("said bye: ")
        async with fleet.worker(fleet.keys("worse"), "worse") as worse:
            await fleet.until(2)
            await worse.send_raw(msgpack.packb([1, [[long, {}]]]))
            await fleet.logged("unknown message ")
        await answers(fleet)
    assert max(map(len, fleet.waiter.lines)) < 5000


@pytest.mark.slow
async def test_a_worker_says_only_so_much_of_its_cache_at_once(fleet: Fleet) -> None:
    """A frame of 100 MB of it held the loop for half a minute."""
    run = bytes(range(1, 9)) * 1025
    some = Cached(added=(run,), removed=(run,))
    async with (
        fleet.worker(fleet.keys("good"), "good"),
        fleet.worker(fleet.keys("bad"), "bad") as bad,
    ):
        await fleet.until(2)
        await bad.send(*[some] * 120)
        await bad.send(*[some] * 120)
        await bad.send(*[some] * 135)
        await fleet.logged("bytes of cached blocks in a frame")
        await fleet.logged("worker lost worker=bad")
        assert sum("frame unreadable" in line for line in fleet.waiter.lines) == 1
        await answers(fleet)


@pytest.mark.parametrize(
    "message",
    [
        m.Draining(),
        m.Admitted(),
        m.Ready(card=CARD),
        m.Envelope(m.TaskKey(-1, 7), m.Failed(code=ErrorCode.INTERNAL, message="x")),
        m.Envelope(m.TaskKey(7), m.Delta(tokens=("x",))),  # type: ignore[arg-type]  # unreadable
    ],
    ids=("draining", "admitted", "ready", "setting", "unreadable"),
)
async def test_what_is_said_again_and_again_is_not_logged_again_and_again(
    fleet: Fleet, message: m.FrameItem
) -> None:
    """A frame of 16,000 such messages wrote as many lines, which took a second."""
    async with (
        fleet.worker(fleet.keys("good"), "good"),
        fleet.worker(fleet.keys("bad"), "bad") as bad,
    ):
        await fleet.until(2)
        await bad.send(*[message] * 500, m.Bye(reason="over"))
        await fleet.logged("worker lost worker=bad")
        await answers(fleet)
    assert len(fleet.waiter.lines) < 50


@pytest.mark.slow
async def test_who_greets_without_end_is_blocked(fleet: Fleet) -> None:
    hello = codec.encode(0, [m.Hello(worker="bad", epoch=1, model="x")])
    async with fleet.worker(fleet.keys("good"), "good"):
        async with fleet.worker(fleet.keys("bad"), "bad") as bad:
            await fleet.until(2)
            flood = asyncio.create_task(without_end(bad, hello))
            await fleet.logged("peer blocked identity=bad.pub")
            flood.cancel()
        await fleet.until(1)
        await answers(fleet)


async def test_who_sends_more_than_any_engine_is_blocked(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connection, "_FLOOD_PER_S", 50)
    monkeypatch.setattr(worker_connection, "_FLOOD_S", 0.1)
    async with fleet.worker(fleet.keys("good"), "good"):
        async with fleet.worker(fleet.keys("bad"), "bad") as bad:
            await fleet.until(2)
            flood = asyncio.create_task(pings(bad))
            await fleet.logged("peer blocked identity=bad.pub")
            flood.cancel()
        await fleet.until(1)
        await answers(fleet)


async def without_end(fake: FakeWorker, data: bytes) -> None:
    while True:
        for _ in range(100):
            await fake.send_raw(data)
        await asyncio.sleep(0)


async def pings(fake: FakeWorker) -> None:
    while True:
        for _ in range(20):
            await fake.send(m.Ping())
        await asyncio.sleep(0.01)


async def test_reading_all_ends_although_more_comes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood faster than its reader must not hold the loop."""
    monkeypatch.setattr(router_socket, "_DRAINING_S", 0.05)
    socket = fleet.pool.transport.connections._socket
    monkeypatch.setattr(socket, "_has_input", lambda: True)
    monkeypatch.setattr(socket, "drain", lambda: None)
    socket.drain_all()


def test_frames_of_a_waiting_worker_have_a_bound() -> None:
    name_queue: NameQueue[bytes] = NameQueue(1.0)
    name_queue.wait(b"x", "x", b"hello", 0.0)
    for _ in range(10):
        assert name_queue.keep(b"x", b"frame", 4 << 20)
    found = name_queue.take_next("x")
    assert found is not None and len(found.frames) == 5


def test_frames_of_unaccepted_connections_are_counted_by_the_minute() -> None:
    bad_frames = BadFrames()
    assert not any(bad_frames.count_unaccepted("a", 0.01 * n) for n in range(1999))
    assert bad_frames.count_unaccepted("a", 20.0)
    assert bad_frames.is_blocked("a", 21.0) and not bad_frames.is_blocked("b", 21.0)
    assert not bad_frames.is_blocked("a", 80.1)
