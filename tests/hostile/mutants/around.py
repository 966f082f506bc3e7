"""Changes of what is around the values of a body: head, bytes, framing, and who hangs up."""

import random
from dataclasses import replace

from tests.hostile.mutants.draft import Change, Draft

_HEADERS = (
    *("content-type", "accept", "accept-encoding", "content-encoding", "x-request-id", "range"),
    *("x-request-timeout", "x-slo-ttft-ms", "x-priority", "x-session-id", "origin", "user-agent"),
    *("authorization", "x-api-key", "anthropic-version", "cookie", "x-forwarded-for", "te", "host"),
    *("forwarded", "if-none-match", "expect", "upgrade", "traceparent", "x-http-method-override"),
)
_VALUES = (
    *(b"", b" ", b"0", b"-1", b"1e999", b"nan", b"\xff\xfe", b"\x00", b"a" * 9000, b"a\x7fb"),
    *(b"*/*", b"gzip", b"identity", b"text/event-stream", b"application/json; charset=utf-16"),
    *(
        b"100-continue",
        b"websocket",
        b"h2c",
        b"bytes=0-1",
        b"00-" + b"f" * 32,
        b"Bearer x",
        b"null",
    ),
    *(
        b"http://evil.example",
        b"evil.example:99999",
        b"127.0.0.1, ::1, x",
        b"\xe2\x98\x83",
        b"1;q=x",
    ),
)
_METHODS = ("GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "POST", "post", "X" * 300)
_QUERIES = (
    *("?", "?model=any", "?model=", "?model=a&model=b", "?action=x", "?%00", "?%ff=%fe", "?a" * 99),
    *("?limit=-1", "?limit=" + "9" * 400, "?include_slots=x", "?autoload=x", "?x=" + "a" * 8000),
    *("/", "//", "/..", "/%2e%2e", ";a=b", "%00", "%ed%a0%80", "%0d%0aX:y", "\x01", "#a", "é"),
)


def _with_header(draft: Draft, rng: random.Random) -> str:
    name, value = rng.choice(_HEADERS), rng.choice(_VALUES)
    new = ((name.encode(), value),) * rng.choice((1, 1, 2, 200))
    draft.case = replace(draft.case, headers=(*draft.case.headers, *new))
    return f"{name}: {value[:20]!r} x{len(new)}"


def _with_method(draft: Draft, rng: random.Random) -> str:
    draft.case = replace(draft.case, method=rng.choice(_METHODS))
    return draft.case.method[:10]


def _with_query(draft: Draft, rng: random.Random) -> str:
    added = rng.choice(_QUERIES)
    draft.case = replace(draft.case, path=draft.case.path + added)
    return f"path + {added[:40]!r}"


def _with_bytes(draft: Draft, rng: random.Random) -> str:
    data = draft.data or b"{}"
    at = rng.randrange(len(data))
    edits = {
        "cut": data[:at],
        "junk after": data + b"}{",
        "twice": data + data,
        "a mark": b"\xef\xbb\xbf" + data,
        "UTF-16": data.decode("utf-8", "replace").encode("utf-16"),
        "a bit": data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
        "a byte": data[:at] + rng.randbytes(1) + data[at:],
        "not UTF-8": data.replace(b"Hi", b"\xff\xfe\xc0\x80"),
        "twice the keys": data.replace(b"{", b'{"prompt": 5, "messages": "x", ', 1),
        "empty": b"",
        "gzip": b"\x1f\x8b" + data,
        "form": b"prompt=Hi&n_predict=2",
        "white": b" " * 100_000 + data,
    }
    name = rng.choice(list(edits))
    draft.data = edits[name]
    return f"bytes: {name}"


def _raw(draft: Draft, rng: random.Random) -> str:
    """Frame the body wrongly, or stop in its middle."""
    case, data = draft.case, draft.data or b"{}"
    head = f"{case.method} {case.path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    lines = head.encode("latin-1", "replace") + b"".join(
        b"%s: %s\r\n" % header for header in case.headers
    )
    chunked, half = b"Transfer-Encoding: chunked\r\n", data[: len(data) // 2]
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    frames = {
        "chunked": chunked + b"\r\n" + whole,
        "chunks of a byte": chunked + b"\r\n" + _bytewise(data[:2000]) + b"0\r\n\r\n",
        "chunks cut": chunked + b"\r\n%x\r\n%s" % (len(data), half),
        "a bad chunk": chunked + b"\r\nzz\r\n" + whole,
        "a huge chunk": chunked + b"\r\nffffffffffffffff\r\n" + data,
        "extensions": chunked + b"\r\n%x;%s\r\n%s\r\n0\r\n\r\n" % (len(data), b"a" * 99, data),
        "trailers": chunked + b"\r\n%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(data), data),
        "chunks in pieces": chunked + b"\r\n" + b"1\r\n{\r\n" * 40,
        "half": b"Content-Length: %d\r\n\r\n%s" % (len(data), half),
        "too long": b"Content-Length: %d\r\n\r\n%s" % (max(len(data) - 3, 0), data),
        "negative": b"Content-Length: -5\r\n\r\n" + data,
        "huge": b"Content-Length: %s\r\n\r\n%s" % (b"9" * 30, data),
        "both": chunked + b"Content-Length: %d\r\n\r\n%s" % (len(data), whole),
        "two lengths": b"Content-Length: 2\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data),
        "folded": b"X: a\r\n b\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data),
        "expect": b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data),
    }
    name = rng.choice(list(frames))
    draft.case = replace(case, raw=lines + frames[name])
    return f"framing: {name}"


def _bytewise(data: bytes) -> bytes:
    return b"".join(b"1\r\n%c\r\n" % one for one in data)


def _gone(draft: Draft, rng: random.Random) -> str:
    draft.case = replace(draft.case, hangs_up_s=rng.choice((0.001, 0.01, 0.1)))
    return "hangs up"


AROUND: tuple[Change, ...] = (_with_header, _with_method, _with_query, _with_bytes, _raw, _gone)
