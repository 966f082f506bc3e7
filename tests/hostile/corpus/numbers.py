"""Every field of the parameter table with values that no honest client sends."""

from typing import Any

from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import describe
from tests.hostile.case import CaseList, HostileCase, Target

_NUMBERS: dict[str, bytes] = {
    "int32": b"2147483647",
    "int32+1": b"2147483648",
    "-int32": b"-2147483648",
    "int64": b"9223372036854775807",
    "uint64+1": b"18446744073709551616",
    "400 digits": b"1" + b"0" * 400,
    "1e308": b"1e308",
    "-1e308": b"-1e308",
    "1e999": b"1e999",
    "subnormal": b"5e-324",
    "fraction": b"1.5",
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
}
_SHAPES: dict[str, bytes] = {
    "text": b'"\\u0000x"',
    "list": b"[[[]], {}, null, 1]",
    "object": b'{"a": {"b": []}}',
}


def cases(target: Target) -> list[HostileCase]:
    """Return a case for each field and value; the answer is two tokens where one comes."""
    found = CaseList("numbers")
    for row in describe(SamplingParams):
        numeric = row.kind in (int, float) or "int" in str(row.kind) or "float" in str(row.kind)
        values = _NUMBERS | _SHAPES if numeric else _SHAPES | _few()
        for label, value in values.items():
            found.post(f"{row.name}={label}", "/completion", _body(row.name, value))
    for label, value in _NUMBERS.items():
        found.post(f"chat max_tokens={label}", "/v1/chat/completions", _chat("max_tokens", value))
        found.post(
            f"chat top_logprobs={label}", "/v1/chat/completions", _chat("top_logprobs", value)
        )
        found.post(f"messages max_tokens={label}", "/v1/messages", _chat("max_tokens", value))
        found.post(f"best_of={label}", "/v1/completions", _body("best_of", value))
        found.post(f"rerank top_n={label}", "/v1/rerank", _rerank(value))
    return found.cases


def _few() -> dict[str, bytes]:
    return {name: _NUMBERS[name] for name in ("uint64+1", "1e999", "NaN")}


def _body(field: str, value: bytes) -> bytes:
    # A field that is sent twice keeps its last value in most parsers: ours must not trip over it.
    return b'{"prompt": "Hi", "n_predict": 2, "%s": %s}' % (field.encode(), value)


def _chat(field: str, value: bytes) -> bytes:
    messages = b'[{"role": "user", "content": "Hi"}]'
    return b'{"messages": %s, "n_predict": 2, "%s": %s}' % (messages, field.encode(), value)


def _rerank(value: bytes) -> Any:
    return b'{"query": "a", "documents": ["b", "c"], "top_n": %s}' % value
