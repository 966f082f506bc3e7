"""Frames: one bad or huge message costs its own task, and everything else arrives in order."""

import math
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.wire import codec
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from tests.envelopes import payloads
from tests.protocol.test_codec import MESSAGES

HOSTILE = st.one_of(
    st.integers(min_value=2**64),
    st.integers(max_value=-(2**63) - 1),
    st.sampled_from(["\ud800", "\udfff tail", object(), {1, 2}, 1j]),
    st.sampled_from([math.nan, math.inf, "\0", "", 0, None, True, b"", "x" * 5000]),
)


def generate(task_id: int, **fields: Any) -> m.Envelope:
    return m.Envelope(m.TaskKey(task_id), m.Generate(params=SamplingParams(), **fields))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def received(packed: codec.Packed, seq: int) -> list[m.FrameItem]:
    """Decode all frames, which must follow each other without a gap."""
    found: list[m.FrameItem] = []
    for i, data in enumerate(packed.frames):
        frame = codec.decode(data)
        assert frame.seq == seq + i
        found += frame.messages
    return found


@given(
    seq=st.integers(0, 2**32),
    good=st.lists(MESSAGES, max_size=4),
    bad=st.lists(st.tuples(st.integers(0, 4), HOSTILE), min_size=1, max_size=3),
)
def test_hostile_values_keep_no_other_message_back(
    seq: int, good: list[m.FrameItem], bad: list[tuple[int, Any]]
) -> None:
    messages = list(good)
    for at, value in bad:
        fields = [{"prompt": value}, {"media": (value,)}, {"chat": m.Chat(kwargs={"a": value})}]
        messages.insert(at, generate(7, **fields[at % 3]))
    packed = codec.pack(seq, messages)
    refused = [message for message, _ in packed.refused]
    arrived = received(packed, seq)
    assert len(arrived) + len(refused) == len(messages)
    hostile = [one for one in messages if not any(one is ours for ours in good)]
    assert all(any(one is bad_one for bad_one in hostile) for one in refused)
    kept = iter(arrived)
    assert all(any(one == other for other in kept) for one in good)


def test_a_token_beyond_64_bits_ends_its_own_task_only() -> None:
    bad = m.Envelope(
        m.TaskKey(2), m.Generate(prompt="hi", params=SamplingParams(logit_bias=((2**64, 1.0),)))
    )
    packed = codec.pack(3, [generate(1, prompt="a"), bad, m.Envelope(m.TaskKey(9), m.Cancel())])
    assert [one.task.id for one in received(packed, 3) if isinstance(one, m.Envelope)] == [1, 9]
    ((message, error),) = packed.refused
    assert message is bad and error.code is ErrorCode.INVALID_REQUEST


def test_nesting_that_cannot_be_written_ends_its_own_task_only() -> None:
    bad = generate(2, chat=m.Chat(kwargs={"a": nested(5000)}))
    packed = codec.pack(0, [bad, m.Envelope(m.TaskKey(9), m.Cancel())])
    assert received(packed, 0) == [m.Envelope(m.TaskKey(9), m.Cancel())]
    assert [message for message, _ in packed.refused] == [bad]


def test_large_messages_are_split_over_frames_in_order() -> None:
    text = "x" * (codec.FRAME_BYTES // 2)
    tasks = [m.Envelope(m.TaskKey(i), m.Tokenize(content=text + str(i))) for i in range(5)]
    packed = codec.pack(10, tasks)
    assert len(packed.frames) == 5 and not packed.refused
    assert received(packed, 10) == tasks


def test_many_messages_are_split_over_frames_in_order() -> None:
    messages = [m.Envelope(m.TaskKey(i), m.Cancel()) for i in range(codec.MAX_MESSAGES + 5)]
    packed = codec.pack(3, messages)
    assert len(packed.frames) == 2 and received(packed, 3) == messages


def test_what_no_frame_can_hold_is_too_large_and_says_so() -> None:
    big = m.Envelope(m.TaskKey(1), m.Tokenize(content="x" * 5000))
    small = m.Envelope(m.TaskKey(2), m.Cancel())
    packed = codec.pack(0, [small, big, small], limit=4096)
    assert received(packed, 0) == [small, small]
    ((message, error),) = packed.refused
    assert message is big and error.code is ErrorCode.TOO_LARGE and "4096" in error.message


def test_choices_of_one_prompt_share_its_bytes() -> None:
    prompt, media = "y" * 1_000_000, (b"z" * 1_000_000,)
    tasks = [generate(i, prompt=prompt, media=media) for i in range(128)]
    packed = codec.pack(0, tasks)
    assert sum(map(len, packed.frames)) < 2_100_000
    arrived = received(packed, 0)
    assert arrived == tasks
    assert len({id(one.prompt) for one in payloads(arrived, m.Generate)}) == 1


def test_a_reference_to_nothing_is_its_tasks_misfortune() -> None:
    body = {"params": {}, "prompt": msgpack.ExtType(1, bytes(4))}
    data = msgpack.packb([0, [("generate", 1, 0, -1, body), ("ping", {})]])
    broken, ping = codec.decode(data).messages
    assert isinstance(broken, m.Envelope) and isinstance(broken.payload, m.Malformed)
    assert broken.task == m.TaskKey(1) and "no earlier message" in broken.payload.reason
    assert ping == m.Ping()


@pytest.mark.parametrize("of", [lambda _: 0, lambda place: place - 1], ids=["first", "chain"])
def test_a_frame_cannot_make_its_reader_copy_one_long_value_without_end(
    of: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of half a megabyte could hold the gateway's loop for minutes."""
    monkeypatch.setattr(codec, "MAX_VALUES", 500)
    items: list[Any] = [["generate", 0, 0, -1, {"params": {}, "prompt": [1] * 99}]]
    for place in range(1, 9):
        body = {"params": {}, "prompt": msgpack.ExtType(1, of(place).to_bytes(4, "big"))}
        items.append(["generate", place, 0, -1, body])
    read = codec.decode(msgpack.packb([0, items])).messages
    kinds = [type(item.payload) for item in read if isinstance(item, m.Envelope)]
    assert kinds == [m.Generate] * 6 + [m.Malformed] * 3


def test_an_ordinary_turn_is_one_frame() -> None:
    deltas = [
        m.Envelope(m.TaskKey(i), m.Delta(text="a", tokens=(1,), n_predicted=1)) for i in range(8)
    ]
    assert codec.pack(4, deltas).frames == [codec.encode(4, deltas)]
