"""What is wrong with an answer."""

import re
from collections.abc import Sequence

import orjson

from tests.hostile.attack import Outcome

_ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
_SHAPE = {"message": str, "type": str, "code": int}
_OF_ALL = (
    *("JSON", "nests deeper", "body has more than", "is too large to process", "exceeds the"),
    "Multimodal data",
)
"""Refusals of the body as a whole, of a prompt whatever its field, or of what no field changes."""
_ALLOWED = {501, 503, 504}
"""Of 5xx: what the model cannot do, what is not there now, and a deadline that a client set."""


_CONTINUE = re.compile(rb"HTTP/1.1 100 .*?\r\n\r\n", re.DOTALL)


def faults_of(outcome: Outcome, key: str = "", *, bound_s: float) -> list[str]:
    """Return what is wrong; `key` is the field that must be named if the request is refused."""
    case, status = outcome.case, outcome.status
    if outcome.is_hung:
        return ["no end of the answer"]
    found = []
    if outcome.seconds > bound_s and not case.hangs_up_s:
        found.append(f"took {outcome.seconds:.1f} s")
    if not status:
        return [*found, *(["no answer"] if not (case.raw or case.hangs_up_s) else [])]
    if status >= 500 and status not in _ALLOWED:
        found.append(f"status {status}")
    if case.hangs_up_s:
        return found
    answer = _CONTINUE.sub(b"", outcome.answer, count=1)
    head, _, body = answer.partition(b"\r\n\r\n")
    found += _head_faults(head, body)
    if head[9:12].isdigit():
        status = int(head[9:12])
    if status >= 400 and case.method not in ("HEAD", "X" * 300):
        found += _error_faults(outcome, head, body, key)
    return found


def _head_faults(head: bytes, body: bytes) -> Sequence[str]:
    lines = head.split(b"\r\n")
    odd = [line for line in lines[1:] if not re.fullmatch(rb"[\w-]+: [^\x00-\x08\n\r\x7f]*", line)]
    if odd:
        return [f"header {odd[0]!r}"]
    names = [line.partition(b":")[0].lower() for line in lines[1:]]
    twice = {name for name in names if names.count(name) > 1} - {b"vary", b"set-cookie"}
    return [f"two headers {twice}"] if twice else []


def _error_faults(outcome: Outcome, head: bytes, body: bytes, key: str) -> list[str]:
    if b"content-length: 0" in head and b"x-request-id" not in head:
        return []  # the HTTP layer refuses what is no request
    if len(outcome.answer) >= 8192:
        return [f"an error of {len(outcome.answer)} bytes or more"]
    try:
        value = orjson.loads(body)
        error = value["error"]
        bad = [name for name, kind in _SHAPE.items() if not isinstance(error.get(name), kind)]
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return ["the error has no JSON"]
    found = [f"the error has no {name}" for name in bad]
    if not bad and str(error["code"]).encode() != head[9:12]:
        found.append(f"code {error['code']} in {head[:12]!r}")
    path = outcome.case.path.partition("?")[0]
    if path in _ANTHROPIC and value.get("type") != "error":
        found.append("the error has no type")
    if not bad and outcome.status == 400 and key and not _names(error, key):
        found.append(f"the error does not name {key!r}")
    return found


def _names(error: dict[str, object], key: str) -> bool:
    text = f"{error.get('param')} {error['message']}"
    return any(one in text for one in (key, *_OF_ALL))
