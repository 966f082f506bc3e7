"""The wire: whatever goes in comes out, and whatever else comes in is a `ProtocolError`."""

import dataclasses
import re
import subprocess
import sys
import typing
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import WIRE_VERSION
from protocol.wire import codec
from protocol.wire import messages as m
from protocol.wire.field_readers import ProtocolError
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Reranked
from protocol.wire.tags import TAGS
from tests.envelopes import Payload, payload_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=12),
}


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Build values of a type as `messages.py` declares it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of_type(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, args))
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), of_type(args[1]), max_size=3)
    if args:
        return st.one_of(*map(of_type, args))
    if dataclasses.is_dataclass(kind):
        return instances(kind)
    return st.from_type(kind)


def instances(cls: Any) -> st.SearchStrategy[Any]:
    """Build messages with any of their optional fields left out."""
    hints = typing.get_type_hints(cls)
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field in dataclasses.fields(cls):
        row = required if field.default is dataclasses.MISSING else optional
        row[field.name] = of_type(hints[field.name])
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: cls(**values))


def items(cls: Any) -> st.SearchStrategy[Any]:
    """Build what a frame holds of a kind: a message, or a payload in an envelope."""
    if not issubclass(cls, m.TaskMessage):
        return instances(cls)
    number = SCALARS[int]
    return st.builds(
        m.Envelope, st.builds(m.TaskKey, number, number, st.just(0)), instances(cls), number
    )


ITEMS = {cls: items(cls) for cls in TAGS.values()}
"""Made once: Hypothesis looks at a new strategy for longer than it takes to draw from it."""
MESSAGES = st.one_of([*ITEMS.values()])
VALID = st.builds(codec.encode, st.integers(0, 2**32), st.lists(MESSAGES, max_size=3))
WIRE_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def accepted_or_refused(data: bytes) -> None:
    """Decoding gives a frame of messages or a `ProtocolError`, and nothing else."""
    try:
        frame = codec.decode(data)
    except ProtocolError:
        return
    assert isinstance(frame.seq, int)
    kinds = (*TAGS.values(), m.Malformed)
    assert all(type(payload_of(message)) in kinds for message in frame.messages)


@pytest.mark.parametrize("cls", TAGS.values(), ids=TAGS)
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(cls: type[Payload], data: st.DataObject) -> None:
    message = data.draw(ITEMS[cls])
    frame = codec.decode(codec.encode(7, [message]))
    assert frame.seq == 7
    assert frame.messages == (message,)
    assert type(payload_of(frame.messages[0])) is cls


@given(seq=st.integers(0, 2**32), messages=st.lists(MESSAGES, max_size=4))
def test_a_frame_keeps_the_order_of_its_messages(seq: int, messages: list[m.FrameItem]) -> None:
    assert codec.decode(codec.encode(seq, messages)) == (seq, tuple(messages))


@given(data=st.binary(max_size=64))
def test_random_bytes_are_refused(data: bytes) -> None:
    accepted_or_refused(data)


@given(frame=VALID, position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_frame_is_refused_or_still_well_formed(
    frame: bytes, position: int, byte: int
) -> None:
    at = position % len(frame)
    accepted_or_refused(frame[:at] + bytes([byte]) + frame[at + 1 :])


@given(frame=VALID, position=st.integers(0, 10_000))
def test_a_frame_cut_short_is_refused(frame: bytes, position: int) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(frame[: position % len(frame)])


@given(value=WIRE_VALUES)
def test_msgpack_that_is_no_frame_is_refused(value: Any) -> None:
    accepted_or_refused(typing.cast(bytes, msgpack.packb(value)))


@given(tag=st.sampled_from(sorted(TAGS)), data=st.data())
def test_fields_of_a_wrong_type_are_refused(tag: str, data: st.DataObject) -> None:
    kind: Any = TAGS[tag]
    names = [field.name for field in dataclasses.fields(kind)] or ["x"]
    body = data.draw(st.dictionaries(st.sampled_from(names), WIRE_VALUES))
    for item in ([tag, body], [tag, 1, 0, -1, body]):
        accepted_or_refused(typing.cast(bytes, msgpack.packb([0, [item]])))


@given(tag=st.sampled_from(sorted(TAGS)), head=st.lists(WIRE_VALUES, max_size=5))
def test_an_envelope_of_wrong_numbers_is_refused(tag: str, head: list[Any]) -> None:
    accepted_or_refused(typing.cast(bytes, msgpack.packb([0, [[tag, *head, {}]]])))


@given(message=MESSAGES, value=WIRE_VALUES)
def test_unknown_fields_are_ignored(message: m.FrameItem, value: Any) -> None:
    seq, [[*head, body]] = msgpack.unpackb(codec.encode(0, [message]))
    body["a_field_of_the_future"] = value
    assert codec.decode(msgpack.packb([seq, [[*head, body]]])).messages == (message,)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1, "a frame must be"),
        ([0], "a frame must be"),
        (["0", []], "a frame must be"),
        ([0, [1]], "a message must be"),
        ([0, [["nonsense", {}]]], "unknown message 'nonsense'"),
        ([0, [["cancel", {}]]], "Cancel: a message must be"),
        ([0, [["ping", 1, 0, -1, {}]]], "Ping: a message must be"),
        ([0, [["cancel", "1", 0, -1, {}]]], "Cancel: task, attempt and slot must be numbers"),
        ([0, [["cancel", 1, True, -1, {}]]], "Cancel: task, attempt and slot must be numbers"),
        ([0, [["cancel", 1, 0, None, {}]]], "Cancel: task, attempt and slot must be numbers"),
        ([0, [["cancel", 1, 0, -1, 5]]], "a message must be"),
        ([0, [["refused", {}]]], "Refused: missing reason"),
        ([0, [[["delta"], {}]]], "a message must be"),
        ([0, [[{}, {}]]], "a message must be"),
        ([0, [["delta", {}, 1]]], "a message must be"),
        ([0, [], 1], "a frame must be"),
    ],
)
def test_the_reason_names_what_is_wrong(value: Any, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        codec.decode(msgpack.packb(value))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([0, [["done", 1, 0, -1, {"finish": "?"}]]], r"Done\.finish"),
        ([0, [["detokenize", 1, 0, -1, {"tokens": 5}]]], "expected an array, got int"),
        ([0, [["delta", 1, 0, -1, {"tokens": [5, True]}]]], "tokens: expected int, got bool"),
        ([0, [["delta", 1, 0, -1, {"text": []}]]], r"Delta\.text: expected str, got tuple"),
        ([0, [["delta", 1, 0, -1, {"probs": [1]}]]], r"probs: TokenProb: expected a map"),
        ([0, [["generate", 1, 0, -1, {"prompt": [1, None]}]]], r"Generate\.prompt"),
    ],
)
def test_what_is_wrong_in_a_tasks_message_is_that_tasks_alone(value: Any, reason: str) -> None:
    value[1] += [["cancel", 2, 0, -1, {}]]
    broken, cancel = codec.decode(msgpack.packb(value)).messages
    assert isinstance(broken, m.Envelope) and broken.task == m.TaskKey(1)
    assert isinstance(broken.payload, m.Malformed)
    assert re.search(reason, broken.payload.reason)
    assert cancel == m.Envelope(m.TaskKey(2), m.Cancel())


def test_whole_numbers_are_numbers_too() -> None:
    values = {"total": 1, "cached": 1, "processed": 1, "time_ms": 2}
    scores = {"scores": [0.5, 1], "n_tokens": 2}
    data = msgpack.packb([0, [["progress", 1, 0, -1, values], ["reranked", 1, 0, -1, scores]]])
    progress, reranked = map(payload_of, codec.decode(data).messages)
    assert isinstance(progress, m.Progress)
    assert type(progress.time_ms) is float
    assert isinstance(reranked, Reranked)
    assert [type(score) for score in reranked.scores] == [float, float]


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\x80\xc0",  # a map as the key of a map
        b"\x91" * 2000,  # deeper than any honest frame
        b"\xdd\xff\xff\xff\xff",  # claims four thousand million items
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\xa2\xff\xfe",  # no UTF-8
        b"",
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(data)


def test_fields_at_their_default_do_not_travel() -> None:
    task = m.Envelope(m.TaskKey(1), m.Generate(prompt="x", params=SamplingParams()))
    assert msgpack.unpackb(codec.encode(0, [task])) == [
        0,
        [["generate", 1, 0, -1, {"prompt": "x", "params": {}}]],
    ]


def test_a_frame_beyond_the_limit_is_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_FRAME_BYTES", 3)
    with pytest.raises(ProtocolError, match="larger than 3"):
        codec.decode(b"1234")


@pytest.mark.parametrize("item", [b"\x80", b"\x91\xc0", b"\xc0"], ids=["maps", "lists", "nothing"])
def test_a_frame_of_more_values_than_fit_is_refused_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, item: bytes
) -> None:
    """64 MiB of empty maps took 5 GB."""
    monkeypatch.setattr(codec, "_LARGE", 1000)
    monkeypatch.setattr(codec, "MAX_VALUES", 20_000)
    lists = [b"\xdc" + (10_000).to_bytes(2, "big") + item * 10_000] * 4
    data = b"\x92\x01\x91\x92\xa4ping\x81\xa1a\x94" + b"".join(lists)
    with pytest.raises(ProtocolError, match="too many values"):
        codec.decode(data)


def test_a_frame_of_a_million_messages_is_refused_before_they_are_read() -> None:
    """Reading them took 2.4 s, in which the gateway answered nobody."""
    count = (1_000_000).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="1000000 messages"):
        codec.decode(b"\x92\x01\xdd" + count + b"\x92\xa4ping\x80" * 1_000_000)


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a"], ids=["lists", "maps"])
def test_json_that_nests_too_deep_is_refused(nest: bytes) -> None:
    deep = b"\x81\xa1x" + nest * 1000 + b"\x01"
    ready = b"\x92\xa5ready\x81\xa4card\x81\xaftemplate_kwargs" + deep
    with pytest.raises(ProtocolError, match="nested too deep"):
        codec.decode(b"\x92\x01\x91" + ready)
    task = b"\x95\xa8generate\x07\x00\xff\x82\xa6params\x80\xa4chat\x81\xa6kwargs" + deep
    (read,) = codec.decode(b"\x92\x01\x91" + task).messages
    assert isinstance(read, m.Envelope) and isinstance(read.payload, m.Malformed)


def test_the_keys_of_a_map_are_texts() -> None:
    body = {"code": "internal", "message": "x", "detail": {5: 1}}
    (read,) = codec.decode(msgpack.packb([1, [["failed", 1, 0, -1, body]]])).messages
    assert isinstance(read, m.Envelope) and isinstance(read.payload, m.Malformed)


def test_a_large_frame_with_few_values_is_read() -> None:
    text = "x" * 2_000_000
    sent = m.Envelope(m.TaskKey(1), m.Delta(text=text, tokens=(1,), n_predicted=1))
    (read,) = codec.decode(codec.encode(1, [sent, m.Ping()])).messages[:1]
    assert isinstance(read, m.Envelope) and isinstance(read.payload, m.Delta)
    assert read.payload.text == text


@pytest.mark.parametrize(
    "payload",
    [
        m.Generate(prompt="hi", params=SamplingParams(logit_bias=((5, -1.5), ("a", 2.0)) * 4096)),
        m.Done(finish=m.Finish.EOS, biases=((5, -1.5),) * 8192),
    ],
    ids=["request", "answer"],
)
def test_a_long_list_of_pairs_takes_no_call_for_each(payload: m.TaskMessage) -> None:
    """40 choices with 8,192 biases took 0.85 s, half of it in the gateway."""
    n_calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal n_calls
        n_calls += event == "call"

    sent = m.Envelope(m.TaskKey(1), payload)
    codec.decode(codec.encode(1, [sent]))  # builds what is made once for each type
    sys.setprofile(count)
    try:
        read = codec.decode(codec.encode(1, [sent]))
    finally:
        sys.setprofile(None)
    assert read.messages == (sent,)
    assert n_calls < 1000


def test_a_pair_of_wrong_types_among_many_is_refused() -> None:
    body = {"finish": "eos", "biases": [[5, 1.5]] * 99 + [[5, "x"]]}
    data = msgpack.packb([0, [["done", 1, 0, 0, body]]])
    (read,) = codec.decode(data).messages
    assert isinstance(read, m.Envelope)
    assert isinstance(read.payload, m.Malformed)


_NEXT_RELEASE = """
import sys, protocol
protocol.WIRE_VERSION += 1
from protocol.wire import codec, messages as m
print([said.wire_version for said in codec.decode(bytes.fromhex(sys.argv[1])).messages])
hello = m.Hello(worker="w", epoch=1, model="m")
print(codec.encode(0, [hello, m.Welcome(gateway="g")]).hex())
"""


def test_peers_of_two_releases_read_each_others_wire_version() -> None:
    """A version that was left out as the default of its sender was read as the reader's own."""
    hello = m.Hello(worker="w", epoch=1, model="m")
    ours = codec.encode(0, [hello, m.Welcome(gateway="g")]).hex()
    said = subprocess.run(
        [sys.executable, "-c", _NEXT_RELEASE, ours], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[0] == str([WIRE_VERSION] * 2)
    heard = codec.decode(bytes.fromhex(said[1])).messages
    assert [getattr(one, "wire_version", 0) for one in heard] == [WIRE_VERSION + 1] * 2
