"""The outermost layer: our own faults, and what is no HTTP request."""

from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.access import AccessMiddleware
from gateway.http.origin.client_address import TrustedProxies
from gateway.metrics.metrics import Metrics
from gateway.pool.requests.book import RequestBook
from gateway.pool.requests.record import REQUEST, RequestRecord
from protocol.config.limits import LimitsConfig
from tests.gateway.http.test_sse import Sink


def _scope(kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "method": "GET", "path": "/x", "headers": [], "client": None}


def _outermost(app: ASGIApp, metrics: Metrics) -> AccessMiddleware:
    return AccessMiddleware(app, metrics, LimitsConfig(), TrustedProxies(), RequestBook())


async def _nothing() -> Message:
    raise AssertionError("nobody reads")


async def test_a_fault_of_ours_is_a_500_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret")

    sink, metrics = Sink(), Metrics()
    await _outermost(broken, metrics)(_scope(), _nothing, sink)
    assert sink.messages[0]["status"] == 500
    assert b"secret" not in sink.body and b"server_error" in sink.body
    assert "secret" in caplog.text
    assert metrics.http_statuses["other", "5xx"] == 1


async def test_a_fault_after_the_first_byte_leaves_the_body_broken() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("secret")

    sink = Sink()
    await _outermost(broken, Metrics())(_scope(), _nothing, sink)
    assert [message["type"] for message in sink.messages] == ["http.response.start"]


async def test_websockets_are_closed() -> None:
    async def unreached(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("not for us")

    sink = Sink()
    await _outermost(unreached, Metrics())(_scope("websocket"), _nothing, sink)
    assert sink.messages == [{"type": "websocket.close", "code": 1008, "reason": ""}]


async def test_the_lifespan_passes() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    await _outermost(app, Metrics())(_scope("lifespan"), _nothing, Sink())
    assert seen == ["lifespan"]


LENGTH, CHUNKED = (b"content-length", b"5"), (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize(
    ("version", "headers", "closes"),
    [
        ("1.1", [LENGTH, CHUNKED], True),
        ("2", [LENGTH, CHUNKED], False),
        ("1.0", [CHUNKED], True),
    ],
)
async def test_a_request_that_is_framed_in_two_ways_ends_its_connection(
    version: str, headers: list[tuple[bytes, bytes]], closes: bool
) -> None:
    """What follows on the connection is a second request only by one of two readings."""
    sink = Sink()
    scope = {**_scope(), "http_version": version, "headers": headers}
    await _outermost(_never, Metrics())(scope, _nothing, sink)
    assert sink.messages[0]["status"] == 400
    assert ((b"connection", b"close") in sink.messages[0]["headers"]) is closes


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"host", b"origin"])
async def test_a_request_says_once_who_asks(name: bytes) -> None:
    """A proxy may check the first of two headers."""
    sink = Sink()
    headers = [(name, b"a"), (b"accept", b"*/*"), (name, b"b")]
    await _outermost(_never, Metrics())({**_scope(), "headers": headers}, _nothing, sink)
    assert sink.messages[0]["status"] == 400
    assert name in sink.messages[1]["body"]


async def _never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("it is refused before")


@pytest.mark.parametrize(
    ("path", "status", "is_quiet"),
    [("/metrics", 200, True), ("/metrics", 401, False), ("/x", 200, False)],
)
async def test_scrapes_that_are_answered_are_logged_at_debug_level(
    path: str, status: int, is_quiet: bool
) -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        quiet.append(scope[REQUEST])
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    quiet: list[RequestRecord] = []
    await _outermost(answer, Metrics())({**_scope(), "path": path}, _nothing, Sink())
    assert quiet[0].is_quiet is is_quiet
