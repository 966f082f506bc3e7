"""Frames that no worker of ours sends, from a peer that may open the workers' socket."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgpack
import zmq

from protocol import WIRE_VERSION

_AT_ONCE = 8
"""Connections at a time, each after others of its name: most only wait for an answer."""


@dataclass(frozen=True, slots=True)
class WireCase:
    """Messages of one connection; each is a list of parts."""

    name: str
    identity: bytes
    sent: Sequence[Sequence[bytes]]


def wire_cases(worker: str) -> list[WireCase]:
    """Return connections of strangers, and of some that take the name of a living worker."""
    cases: list[WireCase] = []

    def name() -> str:
        return f"stranger{len(cases) % _AT_ONCE}"

    def hello(*more: Any, version: int = WIRE_VERSION) -> bytes:
        return _frame(0, _hello(name(), version=version), *more)

    def add(label: str, *sent: Sequence[bytes], identity: bytes = b"") -> None:
        cases.append(WireCase(label, identity or f"{name()}:1:0".encode(), sent))

    for label, data in _frames().items():
        add(label, [data])
        add(f"{label}, after a greeting", [hello()], [data])
    add("no identity of ours", [hello()], identity=b"\xff\0\xfe")
    add("another's identity", [hello()], identity=b"other:1:0")
    add("many parts", [hello(), b"x", b"y"] * 50)
    add("a name that lives", [_frame(0, _hello(worker))], identity=f"{worker}:1:0".encode())
    add("a long name", [_frame(0, _hello("n" * 1_000_000))], identity=b"n" * 200)
    add("a forged name", [_frame(0, _hello("a\nERROR forged"))], identity=b"a\nb:1:0")
    add("another version", [hello(version=99)])
    add("a skipped frame", [hello()], [_frame(7, ("ping", {}))])
    add("2,000 frames", [hello()], *[[_frame(1, ("ping", {}))]] * 2000)
    for item in _MESSAGES:
        add(f"{item[0]} of nobody", [hello(item)])
    return cases


def _hello(name: str, version: int = WIRE_VERSION) -> tuple[str, dict[str, Any]]:
    fields = {"worker": name, "epoch": 1, "pid": 1, "model": "m", "wire_version": version}
    return ("hello", fields)


def _frame(seq: Any, *messages: Any) -> bytes:
    packed: bytes = msgpack.packb([seq, list(messages)])
    return packed


def _frames() -> dict[str, bytes]:
    return {
        "nothing": b"",
        "noise": bytes(range(256)) * 10,
        "a text": b"GET / HTTP/1.1\r\n\r\n",
        "deep lists": b"\x91" * 100_000 + b"\xc0",
        "deep maps": b"\x81\xa1a" * 100_000 + b"\xc0",
        "a huge announced list": b"\xdd\xff\xff\xff\xff",
        "a huge announced map": b"\xdf\xff\xff\xff\xff",
        "a huge announced text": b"\xdb\xff\xff\xff\xff",
        "no frame": _frame("0"),
        "negative": _frame(-5, ("ping", {})),
        "a sequence of 2**63": _frame(2**63, ("ping", {})),
        "an unknown message": _frame(1, ("nothing", {})),
        "a tag of bytes": _frame(1, (b"ping", {})),
        "wrong types": _frame(1, ("heartbeat", {"step": "x", "busy": None})),
        "missing fields": _frame(1, ("done", 1, 0, -1, {})),
        "a payload without an envelope": _frame(1, ("delta", {})),
        "an envelope around a greeting": _frame(1, ("ping", 1, 0, -1, {})),
        "an envelope of texts": _frame(1, ("delta", "1", "0", "x", {})),
        "keys that are lists": msgpack.packb([1, [["ping", {(1, 2): 3}]]]),
        "a timestamp": msgpack.packb([1, [["ping", {"a": msgpack.Timestamp(1, 2)}]]]),
        "not UTF-8": b"\x92\x01\x91\x92\xa4ping\x81\xa1\xff\xa2\xff\xfe",
        "100,000 messages": _frame(1, *[("ping", {})] * 100_000),
        "deep variables": b"\x92\x01\x91\x92\xa5ready\x81\xa4card\x81\xaftemplate_kwargs"
        + b"\x81\xa1x" * 1000
        + b"\xc0",
        "10 MB": _frame(1, ("bye", {"reason": "x" * 10_000_000})),
    }


_MESSAGES: list[tuple[Any, ...]] = [
    ("done", 2**63 - 1, 0, -1, {"finish": "stop"}),
    ("done", -1, 0, -1, {"finish": "stop"}),
    ("failed", 1, 0, -1, {"code": "internal", "message": "x\n" * 1000}),
    ("started", 1, 0, -1, {"slot": 2**60, "n_prompt": -1}),
    ("delta", 1, 0, -1, {"text": "x" * 1_000_000}),
    ("cached", {"added": [b"x" * 1_000_001, b"", b"short"], "removed": [bytes(16)] * 10_000}),
    ("cached", {"added": list(range(100_000))}),
    ("heartbeat", {"step": -1, "busy": 2**40}),
    ("progress", 1, 0, -1, {"total": -1, "cached": -1, "processed": -1, "time_ms": -1.0}),
    ("cached", {"added": [bytes(8200)] * 200, "removed": [bytes(8200)] * 200}),
    ("failed", 1, 0, -1, {"code": "overloaded", "message": "", "detail": {"queue_position": 5}}),
    ("failed", 1, 0, -1, {"code": "internal", "message": "", "detail": {5: 5}}),
    ("embedded", 1, 0, -1, {"vectors": [b"abc"], "n_embd": 0, "n_tokens": []}),
    ("reranked", 1, 0, -1, {"scores": [float("nan")], "n_tokens": 1}),
    ("inspected", 1, 0, -1, {"slots": [{"id": 2**64 - 1, "is_processing": True}]}),
    ("draining", {}),
    ("bye", {"reason": "\x1b[2J"}),
    ("bye", {"reason": "\x1b" * 1_000_000}),
]


def attack_wire(
    endpoint: str, worker: str, prepare: "Callable[[zmq.Socket[bytes]], None]" = lambda _: None
) -> int:
    """Send every case over a connection of its own; return how many there were.

    `prepare` sets further options of each socket, such as keys.
    """
    cases = wire_cases(worker)

    def send(first: int) -> None:
        for case in cases[first::_AT_ONCE]:
            with context.socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.IDENTITY, case.identity)
                dealer.setsockopt(zmq.LINGER, 500)
                dealer.setsockopt(zmq.SNDTIMEO, 1000)
                prepare(dealer)
                dealer.connect(endpoint)
                with suppress(zmq.Again):  # nothing dials for a socket whose key has been refused
                    for parts in case.sent:
                        dealer.send_multipart(list(parts))
                    dealer.poll(50)  # an answer, if there is one, is for reading only

    with zmq.Context() as context, ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(send, range(_AT_ONCE)))
    return len(cases)
