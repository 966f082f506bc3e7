"""Request bodies: size, patience, depth, JSON."""

import asyncio
import sys
import threading
from collections import deque
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from gateway.http.bodies import body as bodies
from gateway.http.bodies import parsing
from gateway.http.bodies.body import (
    HELD,
    BodyBudget,
    BodyLimits,
    BodyReservation,
    ClientGone,
    read_json,
)
from gateway.http.bodies.parsing import parse_object
from gateway.http.errors import RequestRefused
from protocol.config.limits import LimitsConfig
from protocol.errors import ErrorCode, InvalidRequest, TaskError

LIMITS = BodyLimits(max_bytes=16)
MAX_DEPTH = LimitsConfig().depth


class Parts:
    """A `receive` that hands out these parts, then nothing."""

    def __init__(self, *parts: bytes | None) -> None:
        self._parts = deque(parts)
        self.n_read = 0

    async def __call__(self) -> Message:
        if not self._parts:
            await asyncio.Event().wait()
        part = self._parts.popleft()
        self.n_read += 1
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": part != b""}


def _scope(length: int | None = None) -> dict[str, Any]:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return {"type": "http", "headers": headers}


async def test_a_body_comes_in_parts() -> None:
    assert await read_json(_scope(), Parts(b'{"a"', b":1}", b""), LIMITS) == {"a": 1}


async def test_a_body_over_the_limit_is_read_to_its_end_and_refused() -> None:
    parts = Parts(b"x" * 10, b"x" * 10, b"x" * 10, b"")
    with pytest.raises(RequestRefused) as caught:
        await read_json(_scope(), parts, LIMITS)
    assert caught.value.status == 413
    assert parts.n_read == 4


async def test_a_body_that_could_hold_the_loop_is_parsed_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt of 256 KiB of short strings took 0.1 s."""
    places = []

    def noted(data: bytes, limits: LimitsConfig) -> dict[str, Any]:
        places.append(threading.current_thread() is threading.main_thread())
        return {}

    monkeypatch.setattr(bodies, "parse_object", noted)
    for size in (60_000, 70_000):
        await read_json(_scope(), Parts(b"x" * size, b""), BodyLimits(max_bytes=10**6))
    assert places == [True, False]


@pytest.mark.parametrize("encoding", [b"gzip", b"BR", b"deflate, gzip"])
async def test_a_compressed_body_is_refused_by_its_encoding(encoding: bytes) -> None:
    scope = {"type": "http", "headers": [(b"content-encoding", encoding)]}
    with pytest.raises(RequestRefused, match="Content-Encoding") as caught:
        await read_json(scope, Parts(b"\x1f\x8b", b""), LIMITS)
    assert caught.value.status == 415


async def test_a_body_that_only_claims_an_encoding_is_read() -> None:
    for encoding in (b"identity", b"utf-8"):
        scope = {"type": "http", "headers": [(b"content-encoding", encoding)]}
        assert await read_json(scope, Parts(b"{}", b""), LIMITS) == {}


@pytest.mark.slow
async def test_a_body_in_pieces_of_one_byte_takes_no_more_memory_than_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[list[bytes | bytearray]] = []
    append = bodies._append

    def noted(chunks: list[bytes | bytearray], piece: bytes) -> None:
        held.append(chunks)
        append(chunks, piece)

    monkeypatch.setattr(bodies, "_append", noted)
    data = b'{"a": "' + b"xy" * 100_000 + b'"}'
    large = b" " * bodies._PIECE
    parts = [data[i : i + 2] for i in range(0, len(data), 2)]
    limits = BodyLimits(max_bytes=2**20)
    read = await read_json(_scope(), Parts(*parts, large, b" ", large, b" ", b""), limits)
    assert len(read["a"]) == 200_000
    assert sum(map(sys.getsizeof, held[-1])) < 1.3 * (len(data) + 2 * len(large))


async def test_an_endless_body_is_cut() -> None:
    parts = Parts(*[b"x" * 10] * 100)
    with pytest.raises(RequestRefused):
        await read_json(_scope(), parts, LIMITS)
    assert parts.n_read == 4


async def test_a_declared_giant_is_refused_unread() -> None:
    parts = Parts(b"{}", b"")
    with pytest.raises(RequestRefused):
        await read_json(_scope(1000), parts, LIMITS)
    assert parts.n_read == 0


async def test_a_body_that_does_not_come_is_408() -> None:
    limits = BodyLimits(max_bytes=16, timeout_s=0.01)
    with pytest.raises(RequestRefused) as caught:
        await read_json(_scope(), Parts(b"{"), limits)
    assert caught.value.status == 408


async def test_a_client_that_leaves_is_not_answered() -> None:
    with pytest.raises(ClientGone):
        await read_json(_scope(), Parts(b"{", None), LIMITS)


@pytest.mark.parametrize("depth", [1, MAX_DEPTH - 1])
def test_depth_up_to_the_limit_passes(depth: int) -> None:
    assert parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}", LimitsConfig())


@pytest.mark.parametrize("depth", [MAX_DEPTH, 1023, 100_000])
def test_depth_beyond_the_limit_is_refused(depth: int) -> None:
    with pytest.raises(InvalidRequest):
        parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}", LimitsConfig())


def test_a_wide_body_is_not_a_deep_one() -> None:
    body = b'{"a":[' + b"{}," * 500 + b"{}]}"
    assert len(parse_object(body, LimitsConfig())["a"]) == 501


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":1e999}',
        b'{"a":-1e999}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":' + b"9" * 400 + b"}",
    ],
)
def test_what_no_message_could_hold_is_no_json(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        parse_object(body, LimitsConfig())


def test_the_last_of_equal_names_counts_and_nul_is_a_character() -> None:
    assert parse_object(b'{"a":1,"a":"\\u0000"}', LimitsConfig()) == {"a": "\0"}


@pytest.mark.parametrize("item", [b"1,", b"{},", b"[],", b'"a":1,'])
def test_the_values_of_a_body_have_a_bound(item: bytes) -> None:
    limits = LimitsConfig(values=1000)
    opening, closing = (b'{"x":[', b"1]}") if b":" not in item else (b"{", b'"b":1}')
    assert parse_object(opening + item * 80 + closing, limits)
    with pytest.raises(InvalidRequest, match="more than 1000 values"):
        parse_object(opening + item * 1000 + closing, limits)
    assert parse_object(b'{"a":"' + b"x" * 5000 + b'"}', limits)


STRINGS = st.lists(st.text(st.sampled_from('\\",:{[ax'), max_size=12), min_size=1, max_size=20)


@given(STRINGS, st.integers(1, 7))
def test_what_stands_in_strings_does_not_count(texts: list[str], size: int) -> None:
    data = orjson.dumps({"a": texts})
    n_marks = 12 + len(texts) - 1  # {, [, a name and the commas between
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "_SLICE", size)
        parsing._check_values(data, n_marks)
        with pytest.raises(InvalidRequest):
            parsing._check_values(data, n_marks - 1)


async def test_all_bodies_together_have_a_bound_and_one_alone_always_passes() -> None:
    budget, limits = BodyBudget(10), BodyLimits(max_bytes=100)
    held = [BodyReservation(budget) for _ in range(3)]

    async def read(one: int, size: int) -> Any:
        body = b'{"a":"' + b"x" * size + b'"}'
        return await read_json(_scope() | {HELD: held[one]}, Parts(body, b""), limits)

    await read(0, 50)
    with pytest.raises(TaskError) as caught:
        await read(1, 0)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    held[0].release()
    await read(1, 0)
    held[1].release()
    await read(2, 50)
    held[2].release()
    assert budget.n_bytes == 0


async def test_no_tenant_leaves_others_without_room_for_a_body() -> None:
    budget, limits = BodyBudget(100), BodyLimits(max_bytes=100)
    body = b'{"a":"' + b"x" * 12 + b'"}'

    async def read(tenant: str) -> BodyReservation:
        held = BodyReservation(budget)
        await read_json(_scope() | {HELD: held, "tenant": tenant}, Parts(body, b""), limits)
        return held

    held = [await read("greedy"), await read("greedy")]
    with pytest.raises(TaskError):
        await read("greedy")
    held.append(await read("modest"))
    for one in held:
        one.release()
    assert budget.n_bytes == 0
    (await read("greedy")).release()


@pytest.mark.parametrize(
    ("body", "is_large"),
    [
        (b'{"a":"' + b"x" * bodies.LARGE + b'"}', True),
        (b'{"a":[' + b"0," * bodies.MANY_VALUES + b"0]}", True),
        (b'{"a":"' + b"x" * (bodies.LARGE // 2) + b'"}', False),
    ],
)
async def test_bodies_that_take_long_are_parsed_beside_the_loop(
    body: bytes, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty clients with chats of 1,700 messages in 63 KB held up all others for 1.6 s."""
    threads: list[int] = []

    def parse(data: bytes, limits: LimitsConfig) -> Any:
        threads.append(threading.get_ident())
        return parse_object(data, limits)

    monkeypatch.setattr(bodies, "parse_object", parse)
    held = BodyReservation(BodyBudget(1 << 20))
    await read_json(_scope() | {HELD: held}, Parts(body, b""), BodyLimits(max_bytes=1 << 20))
    assert held.is_large == is_large == (threads != [threading.get_ident()])


async def test_large_bodies_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    body, budget = b'{"a":"' + b"x" * bodies.LARGE + b'"}', BodyBudget(1 << 30)
    changed, n_active, most = threading.Condition(), 0, 0

    def parse(data: bytes, limits: LimitsConfig) -> Any:
        nonlocal n_active, most
        with changed:
            n_active += 1
            most = max(most, n_active)
            changed.notify_all()
            changed.wait_for(lambda: n_active > 1, timeout=0.05)  # two would meet here
            n_active -= 1
        return parse_object(data, limits)

    monkeypatch.setattr(bodies, "parse_object", parse)
    limits = BodyLimits(max_bytes=1 << 20)
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            scope = _scope() | {HELD: BodyReservation(budget)}
            group.create_task(read_json(scope, Parts(body, b""), limits))
    assert most == 1


@pytest.mark.parametrize("tenant", ["127.0.0.1", "::/64", ""])
def test_clients_of_this_host_without_a_key_may_hold_all(tenant: str) -> None:
    budget = BodyBudget(100)
    budget.add(60, tenant)
    assert budget.fits(40, tenant)
    assert not budget.fits(41, tenant)
    assert not budget.fits(21, "10.0.0.1")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_named_mistake(data: bytes) -> None:
    try:
        assert isinstance(parse_object(data, LimitsConfig()), dict)
    except InvalidRequest as error:
        assert error.message.startswith("the request body")


def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    assert parse_object(b'\xef\xbb\xbf{"a": 1}', LimitsConfig()) == {"a": 1}
