"""Headers and addresses of valid HTTP requests."""

from tests.hostile.case import CaseList, HostileCase, Target

_BODY = b'{"prompt": "Hi", "n_predict": 2}'


def cases(target: Target) -> list[HostileCase]:
    """Return completions with odd headers, and requests of odd addresses."""
    found = CaseList("headers")
    for label, headers in _HEADERS.items():
        found.add(label, headers=headers, body=_BODY)
    for path in _PATHS:
        found.add(f"GET {path[:40]}", method="GET", path=path)
        found.add(f"POST {path[:40]}", path=path, body=_BODY)
    for method in ("PUT", "PATCH", "TRACE", "OPTIONS", "HEAD", "PROPFIND", "X" * 200):
        found.add(f"method {method[:10]}", method=method, body=_BODY)
    return found.cases


_HEADERS: dict[str, tuple[tuple[bytes, bytes], ...]] = {
    "a long value": ((b"x-a", b"a" * 20_000),),
    "200 headers": tuple((b"x-%d" % i, b"a") for i in range(200)),
    "bytes": ((b"x-a", b"\xff\xfe\x80"),),
    "an unknown encoding": ((b"content-encoding", b"gzip"),),
    "another charset": ((b"content-type", b"application/json; charset=utf-32"),),
    "a form": ((b"content-type", b"multipart/form-data; boundary=" + b"x" * 5000),),
    "an empty key": ((b"authorization", b"Bearer "),),
    "a long key": ((b"authorization", b"Bearer " + b"k" * 20_000),),
    "two keys": ((b"authorization", b"Bearer a"), (b"authorization", b"Basic b")),
    "a key of bytes": ((b"x-api-key", b"\xf0\x28\x8c\x28"),),
    "an odd origin": ((b"origin", b"null"),),
    "a foreign origin": ((b"origin", b"http://evil.example"),),
    "a request id": ((b"x-request-id", b"a b\tc" * 2000),),
    "an unknown expectation": ((b"expect", b"the-unexpected"),),
    "forwarded": ((b"x-forwarded-for", b", ".join([b"1.2.3.4"] * 3000)),),
    "no address forwarded": ((b"x-forwarded-for", b"::::, 999.1.1.1, \xff"),),
    "an upgrade": ((b"connection", b"upgrade"), (b"upgrade", b"h2c"), (b"http2-settings", b"AAAA")),
    "a websocket": (
        (b"connection", b"upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-key", b"eA=="),
        (b"sec-websocket-version", b"13"),
    ),
    "a session": ((b"x-session-id", b"s" * 20_000),),
    "an anthropic version": ((b"anthropic-version", b"\x01\x02"),),
    "a timeout": ((b"x-request-timeout", b"-1e999"), (b"x-stainless-timeout", b"NaN")),
}

_PATHS = (
    "/" + "a" * 20_000,
    "/" + "a/" * 5000,
    "/%00",
    "/%ff%fe",
    "/..%2f..%2fetc/passwd",
    "/../../etc/passwd",
    "//evil.example/",
    "/completion?" + "a=1&" * 4000,
    "/completion?model=%00%0a",
    "/slots?model=" + "m" * 10_000,
    "/slots?fail_on_no_slot=x",
    "/health?include_slots=%ff",
    "/metrics?x=%0a",
    "/models/sse?x=y",
    "/v1/models?limit=99999999999999999999",
    "/completion/../slots",
    "/COMPLETION",
    "/completion;x=1",
    "/openapi.json?%",
)
