"""What only a pool with keys, usage and traces has: its admin API, limits, feed and pages."""

from urllib.parse import quote

from tests.hostile.case import CaseList, HostileCase, Target

ADMIN, USER = "admin-secret", "user-secret"

_BODY = b'{"prompt": "Hi", "n_predict": 2}'
_STREAM = b'{"prompt": "Hi", "n_predict": 2, "stream": true}'


def cases(target: Target) -> list[HostileCase]:
    """Return requests with an admin's key, with a user's, and with none."""
    found = CaseList("guarded")
    for key in (ADMIN, USER, "", "x" * 20_000, "\x00\xff"):
        headers = _authorized(key) if key else ()
        for path in _PATHS:
            found.add(f"GET {path[:60]} {key[:5]!r}", method="GET", path=path, headers=headers)
        for path in ("/pool/events", "/pool/events?x=1"):
            found.add(
                f"{path} {key[:5]!r}", method="GET", path=path, headers=headers, hangs_up_s=0.3
            )
    for label, headers in _HEADERS.items():
        for kind, body in (("whole", _BODY), ("stream", _STREAM)):
            found.add(f"{label}, {kind}", headers=(*_authorized(USER), *headers), body=body)
    for label, path, order in _ORDERS:
        found.post(label, path, order, headers=_authorized(ADMIN))
        found.post(f"{label}, no admin", path, order, headers=_authorized(USER))
    return found.cases


def _authorized(key: str) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"authorization", b"Bearer " + key.encode("latin-1")),)


_ODD = ("", "a" * 400, "a" * 9000, "'; DROP TABLE usage; --", "%00", "%0a%0dX:%20y", "%ff", "*")
_DAYS = ("0000-00-00", "9999-12-31", "2026-02-30", "-1", "1e9", "%D9%A0%D9%A0", "2026-11-22%0a")
_PATHS = (
    *(f"/admin/usage?by={value}" for value in (*_ODD, "key,model,day", "key," * 200, "sum(1)")),
    *(f"/admin/usage?key={value}" for value in _ODD),
    *(f"/admin/usage?from={day}&to={day}" for day in _DAYS),
    *(f"/v1/usage?model={value}" for value in _ODD),
    "/v1/usage?key=admin",
    "/v1/usage?by=key",
    "/admin/usage?" + "by=day&" * 2000,
    *(f"/admin/requests?limit={value}" for value in ("0", "-1", "1e3", "1000", "9" * 400, "%31")),
    *(f"/admin/requests?state={value}&key={value}" for value in _ODD),
    *(
        f"/admin/requests/{value}"
        for value in (*_ODD, "a/b/c", "..", "%2e%2e/x", quote("<script>"))
    ),
    *(
        f"/admin/{value}"
        for value in ("status", "workers", "quarantine", "rollout", "", "x", "../v1")
    ),
    *(f"/ui/{value}" for value in ("x/main.js", "../../x", "x/%2e%2e/app.py", "x/" + "a/" * 3000)),
    *(f"/v1/models/{value}" for value in _ODD),
    "/metrics",
    "/pool",
    "/%2fpool%2fevents",
    "/POOL/events",
    "//admin/status",
    "/admin//status",
    "/x/../admin/status",
)

_HEADERS: dict[str, tuple[tuple[bytes, bytes], ...]] = {
    **{
        f"{name.decode()} {value[:20]!r}": ((name, value),)
        for name in (b"x-request-timeout", b"x-slo-ttft-ms", b"x-priority")
        for value in (
            *(b"0", b"-0", b"-1", b"1e-320", b"1e308", b"1e999", b"nan", b"inf", b"0x10", b"1_0"),
            *(b"", b" ", b"\xb2", b"9" * 30_000, b"5, 5", b"1;q=2", b"true", b"2147483648"),
        )
    },
    "two timeouts": ((b"x-request-timeout", b"1"), (b"x-request-timeout", b"9")),
    **{
        f"x-request-id {value[:20]!r}": ((b"x-request-id", value),)
        for value in (
            *(b"", b"a b", b"\xff\xfe", b"\x7f", b"x" * 128, b"x" * 129, b"x" * 30_000),
            *(b'"}{', b"task=1", b"%s%n", b"<script>", b"../../x", b"ERROR supervisor forged"),
        )
    },
    "two request ids": ((b"x-request-id", b"a"), (b"x-request-id", b"b")),
    **{
        f"trace {value[:24]!r}": ((name, value),)
        for name in (b"traceparent", b"tracestate", b"baggage")
        for value in (
            *(b"", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"ff-x-y-z", b"\xff" * 60),
            *(b"a=b," * 7000, b" " * 100 + b"x" + b" \t" * 14_000 + b"x", b"\xe9," * 2700),
            *(b"a=" + b"%" * 8000, b"\xb2-\xb2-\xb2-\xb2", b"=" * 9000, b"a=b;c;d;" * 900),
        )
    },
    "many addresses": ((b"x-forwarded-for", b", ".join([b"127.0.0.1"] * 2500)),),
    "forwarded": ((b"forwarded", b"for=" * 7000),),
    "codings": ((b"accept-encoding", b"gzip;q=" * 4000),),
    "tags": ((b"if-none-match", b'W/"x",' * 5000),),
}

_ORDERS: tuple[tuple[str, str, object], ...] = (
    *(
        (f"drain {name!r:.20}", "/admin/drain", {"worker": name})
        for name in ("", "nobody", "w-1\n", "x" * 300, "x" * 100_000, None, 5, ["w-1"], "../w")
    ),
    ("force is a text", "/admin/drain", {"worker": "nobody", "force": "yes"}),
    ("drain nothing", "/admin/drain", []),
    ("abort", "/admin/rollout/abort", {}),
    ("a file by name", "/admin/rollout", {"config": "/etc/passwd"}),
    ("options", "/admin/rollout", {"options": {"model": "/etc/passwd"}}),
    ("surge", "/admin/rollout", {"surge": "x" * 50_000}),
    ("golden texts", "/admin/rollout", {"golden": [{"prompt": "x"}] * 10_000, "surge": "no"}),
    ("golden of nothing", "/admin/rollout", {"golden": [{}, None, 5], "surge": "off"}),
    ("a long model", "/v1/chat/completions", {"model": "x" * 100_000, "messages": []}),
    ("a priority", "/completion", {"prompt": "Hi", "n_predict": 1, "priority": 2**70}),
    ("a priority of 1e300", "/completion", {"prompt": "Hi", "n_predict": 1, "priority": 1e300}),
    ("a chat id", "/v1/chat/completions/control", {"id": "x" * 9000, "action": "stop"}),
)
