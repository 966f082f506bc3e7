"""Kept streams as such: who finds which, what makes room for others, and what is dropped."""

import asyncio
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replay.endpoints import read_offset
from gateway.replay.session import MAX_BYTES, OffsetLost, StreamSession
from gateway.replay.sessions import StreamSessions
from protocol.config.limits import LimitsConfig
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from tests.gateway.inprocess import until

MIB = 1024 * 1024
HEAD = {"type": "http.response.start", "status": 200, "headers": []}


def body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def sessions_of(keep_s: float = 300.0, **limits: int) -> StreamSessions:
    return StreamSessions(LimitsConfig(**limits), keep_s)


def started(sessions: StreamSessions, name: str, data: bytes = b"", key: str = "") -> StreamSession:
    session = sessions.begin(key, name)
    sessions.take(session, HEAD)
    sessions.take(session, body(data))
    return session


def ended(sessions: StreamSessions, name: str, data: bytes = b"", key: str = "") -> StreamSession:
    session = started(sessions, name, data, key)
    sessions.take(session, body(b"", more=False))
    sessions.over(session)
    return session


def ids(sessions: StreamSessions, *names: str, key: str = "") -> list[str]:
    return [one.conversation_id for one in sessions.lookup(key, names)]


async def test_a_stream_belongs_to_its_key() -> None:
    sessions = sessions_of()
    ours, theirs = started(sessions, "a", key="we"), started(sessions, "a", key="they")
    assert sessions.find("we", "a") is ours and sessions.find("they", "a") is theirs
    assert sessions.find("", "a") is None
    assert not sessions.end("", "a") and sessions.end("we", "a")
    assert ours.is_stopped and not theirs.is_stopped


async def test_a_new_stream_ends_the_one_of_its_id() -> None:
    sessions = sessions_of()
    first = started(sessions, "a", b"one")
    second = started(sessions, "a", b"two")
    assert first.is_stopped and sessions.find("", "a") is second
    sessions.take(first, body(b"late"))
    sessions.over(first)
    assert (sessions.n_bytes, first.total_bytes) == (3, 3)
    assert len(sessions) == 1


async def test_what_never_began_is_forgotten() -> None:
    sessions = sessions_of()
    session = sessions.begin("", "a")
    sessions.over(session)
    assert session.is_over and not len(sessions)


async def test_an_ended_stream_is_forgotten_in_time() -> None:
    sessions = sessions_of(keep_s=0.0)
    running, over = started(sessions, "a", b"x"), ended(sessions, "b", b"yy")
    assert sessions.find("", "b") is over
    await until(lambda: len(sessions) == 1)
    assert sessions.find("", "a") is running and sessions.n_bytes == 1


async def test_ids_find_the_streams_of_all_their_models_once() -> None:
    sessions = sessions_of()
    for name in ("a", "a::m", "a::m::q", "ab", "b::m", "::"):
        started(sessions, name)
    assert ids(sessions, "a") == ["a", "a::m", "a::m::q"]
    assert ids(sessions, "b", "a::m", "a::m", "zz") == ["b::m", "a::m", "a::m::q"]
    assert ids(sessions, "a", key="other") == [] == ids(sessions)


async def test_a_lookup_cuts_an_id_of_many_parts_a_few_times_only() -> None:
    """4,096 ids of 1,023 parts took the loop for 2.6 s."""
    sessions = sessions_of()
    name = "a" + "::b" * 300
    started(sessions, name)
    assert ids(sessions, "a") == ids(sessions, name[:7]) == ids(sessions, name) == [name]
    assert ids(sessions, name[:301]) == []


async def test_ended_streams_make_room_and_running_ones_do_not() -> None:
    sessions = sessions_of(kept_streams=3)
    started(sessions, "runs")
    for name in ("first", "second"):
        ended(sessions, name)
    started(sessions, "more")
    assert ids(sessions, "runs", "first", "second", "more") == ["runs", "second", "more"]
    started(sessions, "most")
    with pytest.raises(TaskError) as caught:
        sessions.begin("", "too many")
    assert caught.value.code is ErrorCode.OVERLOADED
    assert "kept_streams of [gateway.limits]" in caught.value.message
    started(sessions, "most")  # it takes the place of the one that it ends


async def test_room_comes_from_the_key_that_keeps_most() -> None:
    sessions = sessions_of(kept_streams=4)
    ended(sessions, "a", key="modest")
    for name in ("a", "b", "c"):
        ended(sessions, name, key="greedy")
    started(sessions, "b", key="modest")
    assert ids(sessions, "a", "b", key="modest") == ["a", "b"]
    assert ids(sessions, "a", "b", "c", key="greedy") == ["b", "c"]


async def test_bytes_come_from_the_key_that_keeps_most_of_them() -> None:
    sessions = sessions_of(kept_mib=1)
    for name in ("a", "b", "c"):
        ended(sessions, name, b"x", key="many")
    for name in ("a", "b"):
        ended(sessions, name, b"x" * (MIB // 2 - 2), key="large")
    started(sessions, "c", b"x" * 10, key="other")
    assert ids(sessions, "a", "b", "c", key="many") == ["a", "b", "c"]
    assert ids(sessions, "a", "b", key="large") == ["b"]


async def test_a_key_has_a_limit_of_its_own() -> None:
    sessions = sessions_of(kept_streams_of_key=1)
    ended(sessions, "a", key="we")
    started(sessions, "b", key="we")
    with pytest.raises(TaskError, match="kept_streams_of_key"):
        sessions.begin("we", "c")
    started(sessions, "c", key="they")
    for name in ("a", "b"):  # without a key there is none
        started(sessions, name)


async def test_the_latest_bytes_of_a_stream_are_kept() -> None:
    sessions = sessions_of()
    session = started(sessions, "a", b"x" * MAX_BYTES)
    sessions.take(session, body(b"end"))
    assert (session.n_dropped, session.n_bytes, session.total_bytes) == (
        3,
        MAX_BYTES,
        MAX_BYTES + 3,
    )
    assert sessions.n_bytes == MAX_BYTES
    with pytest.raises(OffsetLost):
        await session.read(2)
    assert (await session.read(MAX_BYTES)) == b"end"


async def test_all_together_are_bounded_in_bytes() -> None:
    sessions = sessions_of(kept_mib=1)
    ended(sessions, "old", b"x" * MIB)
    read = ended(sessions, "read", b"")
    with sessions.reading(read):
        longest, short = started(sessions, "long", b"x" * (MIB // 2)), started(sessions, "short")
        assert ids(sessions, "old", "read") == ["read"]
        sessions.take(short, body(b"y" * (MIB // 2 + 1)))
        assert sessions.n_bytes <= MIB
        assert short.n_dropped and not longest.n_dropped and sessions.find("", "read") is read
    assert sessions.n_bytes == longest.n_bytes + short.n_bytes
    sessions.close()
    assert not len(sessions) and not sessions.n_bytes


async def test_a_drain_ends_what_nobody_reads_now_and_later() -> None:
    sessions = sessions_of()
    unread, read = started(sessions, "a"), started(sessions, "b")
    with sessions.reading(read):
        sessions.drain()
        assert [session.is_over for session in (unread, read)] == [True, False]
    assert [session.is_over for session in (unread, read)] == [True, True]
    assert not unread.is_stopped, "no client has asked for that: what there is of it is no answer"


async def test_readers_wait_for_what_comes_and_leave_nothing_behind() -> None:
    sessions = sessions_of()
    session = started(sessions, "a", b"one")
    assert await session.read(1) == b"ne"
    waiting = [asyncio.ensure_future(session.read(at)) for at in (3, 5, 99)]
    await asyncio.sleep(0)
    sessions.take(session, body(b"two"))
    assert (await waiting[0], await waiting[1]) == (b"two", b"o")
    waiting[2].cancel()
    await asyncio.wait(waiting)
    late = asyncio.ensure_future(session.read(6))
    await asyncio.sleep(0)
    session.stop()
    assert await late == b"" == await session.read(2**64 - 1)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        *(("", 0), ("0", 0), ("12", 12), (" \t\n\v\f\r7", 7), ("+5", 5), ("-0", 0)),
        *(("12abc", 12), ("1.5", 1), ("0x10", 0), ("-1", 2**64 - 1), ("00000000007", 7)),
        *((f"{2**64 - 1}", 2**64 - 1), (f"-{2**64 - 1}", 1)),
    ],
)
def test_offsets_are_read_as_llama_server_reads_them(text: str, offset: int) -> None:
    assert read_offset(text) == offset


@pytest.mark.parametrize(
    "text",
    [
        "abc",
        "-",
        "+-1",
        "- 1",
        " ",
        f"{2**64}",
        f"{2**70}",
        f"-{2**64}",
        "9" * 256,
        "9" * 5000,
        "\u00a01",
        "\u0661",
    ],
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid 'from' offset"):
        read_offset(text)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 5)),
        st.tuples(st.just("take"), st.integers(0, 400_000)),
        st.tuples(st.just("over"), st.integers(0, 8)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("read"), st.integers(0, 8)),
        st.tuples(st.just("leave"), st.integers(0, 8)),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_it_stays_within_its_bounds(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, int]]) -> None:
    sessions = sessions_of(kept_streams=4, kept_streams_of_key=2, kept_mib=1)
    made: list[StreamSession] = []
    readers = ExitStack()
    for what, n in steps:
        key, name = ("", "we", "they")[n % 3], str(n % 2)
        one = made[n % len(made)] if made else None
        if what == "begin":
            with suppress(TaskError):
                made.append(started(sessions, name, key=key))
        elif what == "end":
            sessions.end(key, name)
        elif one is None:
            continue
        elif what == "take":
            sessions.take(one, body(b"x" * n))
        elif what == "over" and not one.is_over:
            sessions.over(one)
        elif what == "read" and sessions.find(one.key, one.conversation_id) is one:
            readers.enter_context(sessions.reading(one))
        elif what == "leave":
            readers.close()
        kept = [one for of_key in sessions._of_key.values() for one in of_key.values()]
        assert sessions.n_bytes == sum(one.n_bytes for one in kept) <= MIB
        assert len(kept) == len(sessions) <= 4
        assert all(one in kept for one in made if one.n_readers and not one.is_stopped)
        assert set(sessions._timers) <= {one for one in kept if one.is_over}
    readers.close()
    sessions.close()
    assert sessions.n_bytes == 0
