"""Texts and lists as long as a body lets them be.

Their bytes are repeated and not encoded: the attacker must not take the processor from the pool.
"""

import json
from collections.abc import Callable

from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import describe
from tests.hostile.case import CaseList, HostileCase, Target

_MILLION = 1_000_000

Body = Callable[[], bytes]


def cases(target: Target) -> list[HostileCase]:
    """Return long prompts, long fields, and lists of very many entries."""
    found = CaseList("lengths")
    _prompts(found)
    for row in describe(SamplingParams):
        if row.kind in (int, float, bool):
            continue
        for label, value in _LONG.items():
            body = _body(b'{"prompt": "Hi", "n_predict": 2, "%s": ' % row.name.encode(), value)
            found.post(f"{row.name} of {label}", "/completion", body)
    _lists(found)
    return found.cases


def _list(item: bytes, n: int) -> Body:
    return lambda: b"[" + (item + b",") * (n - 1) + item + b"]"


def _text(part: str, n: int) -> Body:
    quoted = json.dumps(part).encode()[1:-1]
    return lambda: b'"' + quoted * n + b'"'


def _numbered(n: int) -> Body:
    return lambda: b"{" + b",".join(b'"%d":1' % i for i in range(n)) + b"}"


def _body(head: bytes, value: Body, tail: bytes = b"}") -> Body:
    return lambda: head + value() + tail


_LONG: dict[str, Body] = {
    "a long text": _text("x", _MILLION),
    "many texts": _list(b'"x"', 100_000),
    "long texts": _list(b'"' + b"x" * 10_000 + b'"', 200),
    "many ids": _list(b"17", 100_000),
    "many keys": _numbered(100_000),
}


def _prompts(found: CaseList) -> None:
    short = b', "n_predict": 2}'
    for label, text in {
        "one letter": "a",
        "spaces": " ",
        "newlines": "\n",
        "digits": "7",
        "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "combining marks": "e\u0301\u0302\u0303",
        "words": "word ",
        "NUL": "\0",
    }.items():
        for n in (30_000, 2 * _MILLION // len(text)):
            long = _text(text, n)
            found.post(f"tokenize {n} x {label}", "/tokenize", _body(b'{"content": ', long))
            body = _body(b'{"prompt": ', long, short)
            found.post(f"prompt of {n} x {label}", "/completion", body)
    pieces = b', "with_pieces": true}'
    long = _text("a b ", 500_000)
    found.post("tokenize with pieces", "/tokenize", _body(b'{"content": ', long, pieces))
    ids = _list(b"1000", 3 * _MILLION)
    found.post("detokenize 3 M", "/detokenize", _body(b'{"tokens": ', ids))
    ids = _list(b"1000", 5 * _MILLION)
    found.post("prompt of 5 M ids", "/completion", _body(b'{"prompt": ', ids))
    for n_mb in (40, 70):
        body = _body(b'{"prompt": ', _text("x", n_mb * _MILLION))
        found.post(f"{n_mb} MB body", "/completion", body)
    body = _body(b'{"n": 5, "n_predict": 2, "prompt": ', _text("hello ", 2 * _MILLION))
    found.post("five choices of a long prompt", "/completion", body)


def _lists(found: CaseList) -> None:
    one = b'{"role": "user", "content": "Hi"}'
    part = b'{"type": "text", "text": "x"}'
    messages = b'{"max_tokens": 2, "messages": '
    parts = messages + b'[{"role": "user", "content": '
    role = b'{"max_tokens": 2, "messages": [{"content": "x", "role": '
    files = _list(b'{"text": "' + b"x" * 1000 + b'"}', 10_000)
    chat = "/v1/chat/completions"
    for label, path, body in (
        ("100,000 messages", chat, _body(messages, _list(one, 100_000))),
        ("4,000 messages", chat, _body(messages, _list(one, 4000))),
        ("long role", chat, _body(role, _text("r", _MILLION), b"}]}")),
        ("many parts", chat, _body(parts, _list(part, 100_000), b"}]}")),
        ("100,000 texts", "/v1/embeddings", _body(b'{"input": ', _list(b'"a"', 100_000))),
        ("long text", "/v1/embeddings", _body(b'{"input": ', _text("a b ", 500_000))),
        (
            "documents",
            "/v1/rerank",
            _body(b'{"query": "a", "documents": ', _list(b'"b"', 100_000)),
        ),
        ("files", "/infill", _body(b'{"input_extra": ', files)),
        ("prefix", "/infill", _body(b'{"input_prefix": ', _text("x", 5 * _MILLION))),
        ("keys", "/completion", _numbered(_MILLION)),
        (
            "prompts",
            "/completion",
            _body(b'{"n_predict": 1, "prompt": ', _list(b'"a"', 20_000)),
        ),
        ("responses", "/v1/responses", _body(b'{"input": ', _list(one, 100_000))),
        ("anthropic", "/v1/messages", _body(messages, _list(one, 100_000))),
        (
            "system",
            "/completion",
            _body(b'{"system_prompt": {"prompt": ', _text("x", 5 * _MILLION), b"}}"),
        ),
        ("template", "/apply-template", _body(b'{"messages": ', _list(one, 50_000))),
        ("names", "/completion", _body(b'{"prompt": "Hi", "model": ', _text("m", _MILLION))),
    ):
        found.post(label, path, body)
