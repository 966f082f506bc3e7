"""The outermost layer: request ids, access log, answer to unexpected exceptions, framing limits.

`RequestBook` writes one log line a request, when it has ended.
"""

import logging
import re
import time
import uuid
from dataclasses import dataclass

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.fields.bounds import bounds_of, check_head
from gateway.http.bodies.body import HELD, MIB, BodyBudget, BodyReservation, ClientGone
from gateway.http.errors import (
    RequestRefused,
    refused_response,
    task_error_response,
)
from gateway.http.origin.auth import PUBLIC_PATHS
from gateway.http.origin.client_address import TrustedProxies
from gateway.metrics.metrics import Metrics
from gateway.pool.requests.book import RequestBook
from gateway.pool.requests.record import REQUEST, RequestRecord
from gateway.pool.tasks.task import INTERNAL_ERROR
from protocol.config.limits import LimitsConfig
from protocol.errors import TaskError

logger = logging.getLogger(__name__)

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
"""Visible ASCII: it goes into headers and log lines."""
_PAGES = "/ui/"
"""Files of the web page, forty at each load: they are logged at DEBUG."""
_ONCE = (b"authorization", b"x-api-key", b"host", b"origin")
"""Headers that say who asks: a proxy may check the first of two, where we would take the last."""
_MAX_TARGET = 8192
"""Bytes of a path with its query. Source: cpp-httplib's limit, which is llama-server's."""
_CLIENT_GONE = 499
"""nginx's status for a client that left before the answer; used in log and metrics only."""


@dataclass(slots=True)
class _AccessRecord:
    """State of one request and its answer."""

    request: RequestRecord
    request_id: bytes
    send: Send
    started_at: float
    status: int = 0
    is_whole: bool = False

    async def forward(self, message: Message) -> None:
        """Send an ASGI message on; adds the headers that every response has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [(b"server", b"llamapool"), (b"x-request-id", self.request_id)]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        elif message["type"] == "http.response.body":
            self.is_whole = not message.get("more_body", False)
        await self.send(message)

    async def cut(self, scope: Scope) -> None:
        """End a body that its handler has left unfinished.

        HTTP/1 clients notice the missing last chunk. An HTTP/2 stream would stay open, because
        Hypercorn does not reset it: it ends normally, after an error event.
        """
        if self.status and not self.is_whole and scope.get("http_version") == "2":
            await self.forward({"type": "http.response.body", "body": b"", "more_body": False})


class AccessMiddleware:
    """Wraps all other layers: each request gets one answer and one log line, whatever happens."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        limits: LimitsConfig,
        proxies: TrustedProxies,
        requests: RequestBook,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._limits = limits
        self._proxies = proxies
        self._requests = requests
        self._bounds = bounds_of(None, limits)
        self._budget = BodyBudget(limits.bodies_mib * MIB)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; sets `scope["address"]`, of the client, and `scope[REQUEST]`."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["address"] = self._proxies.address(scope)
        request_id, now = _request_id(scope), time.monotonic()
        request = self._requests.begin(request_id.decode(), scope["method"], scope["path"], now)
        request.client = scope["address"]
        scope[REQUEST] = request
        exchange = _AccessRecord(request, request_id, send, now)
        held = scope[HELD] = BodyReservation(self._budget)
        try:
            await self._answer(scope, receive, exchange)
        finally:
            held.release()
            self._note(scope, exchange)

    def _note(self, scope: Scope, exchange: _AccessRecord) -> None:
        status = exchange.status or _CLIENT_GONE
        seconds = time.monotonic() - exchange.started_at
        self._metrics.http_request(_route(scope), status, seconds)
        request = exchange.request
        is_page = scope["path"].startswith(_PAGES) and status < 400
        is_scrape = scope["path"] == "/metrics" and status < 400
        request.is_quiet = is_page or is_scrape or scope["path"] in PUBLIC_PATHS
        self._requests.over(request, status, seconds)

    async def _answer(self, scope: Scope, receive: Receive, exchange: _AccessRecord) -> None:
        fault = framing_fault(scope, self._limits)
        if fault is not None:
            response = refused_response(fault, scope)
            if scope.get("http_version") != "2":
                # What follows may be a second request only by our reading of the framing.
                response.headers["connection"] = "close"
            await response(scope, receive, exchange.forward)
            return
        try:
            check_head(scope, self._bounds)
        except TaskError as error:
            await task_error_response(error, scope)(scope, receive, exchange.forward)
            return
        try:
            await self._app(scope, receive, exchange.forward)
        except ClientGone:
            exchange.status = exchange.status or _CLIENT_GONE
            return
        except Exception:
            logger.exception(
                "request failed",
                extra={
                    "path": scope["path"][:200],
                    "request_id": exchange.request.request_id,
                    "action": "the client gets 500, or a cut answer if it had started",
                },
            )
            if not exchange.status:
                await task_error_response(INTERNAL_ERROR, scope)(scope, receive, exchange.forward)
        await exchange.cut(scope)


def framing_fault(scope: Scope, limits: LimitsConfig) -> RequestRefused | None:
    """Return the refusal if the head alone breaks a limit or a rule of framing."""
    target = len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
    if target > _MAX_TARGET:
        return RequestRefused(414, f"the path and the query have more than {_MAX_TARGET} bytes")
    headers = scope["headers"]
    size = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > limits.headers or size > limits.header_kib * 1024:
        message = f"the request has more than {limits.headers} headers or {limits.header_kib} KiB"
        return RequestRefused(431, f"{message} of them")
    names = {name for name, _ in headers}
    if b"transfer-encoding" in names:
        # A proxy may read another end of the request (RFC 9112 section 6.1).
        if b"content-length" in names:
            message = "the request has both Content-Length and Transfer-Encoding: send one of them"
            return RequestRefused(400, message)
        if scope.get("http_version") == "1.0":
            return RequestRefused(400, "HTTP/1.0 has no Transfer-Encoding: send a Content-Length")
    for name in _ONCE if len(names) < len(headers) else ():
        if sum(key == name for key, _ in headers) > 1:
            message = f"the request has the header {name.decode()} more than once"
            return RequestRefused(400, message)
    return None


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return bytes(value)
    return uuid.uuid4().hex.encode()


def _route(scope: Scope) -> str:
    """Return the route's pattern for the metrics, never the path that the client wrote."""
    route = scope.get("route")
    return route.path if isinstance(route, Route) else "other"
