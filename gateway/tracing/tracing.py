"""Opens a trace for each request, and puts it into the scope for the layers below."""

import logging
import threading
from collections.abc import Mapping

from opentelemetry import propagate
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_span_id, format_trace_id
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.pool.trace import TRACE
from gateway.tracing.provider import collector_url, tracer_provider
from gateway.tracing.request_trace import RequestTrace
from protocol.version import version

logger = logging.getLogger(__name__)

_UNTRACED = frozenset({"/health", "/v1/health", "/livez", "/readyz", "/metrics"})
"""Asked every few seconds by machines: their spans would be most of all."""
_CLOSE_S = 5.0
_LONGEST_PATH = 200
_BAGGAGE = b"baggage"
"""Nothing here reads this header, and its reader writes a log line for each wrong entry."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "PATCH"})
"""Any other one is `_OTHER`, as the conventions say: the names of spans are few."""


class Tracing:
    """The traces of this gateway."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("llamapool", version())

    def begin(self, scope: Scope) -> RequestTrace:
        """Begin the span of a request, under its client's if that sent one."""
        headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name != _BAGGAGE
        }
        method = _method_of(scope)
        span = self._tracer.start_span(
            method,
            propagate.extract(headers, getter=_HEADERS),
            SpanKind.SERVER,
            {
                "http.request.method": method,
                "url.path": scope["path"][:_LONGEST_PATH],
                "url.scheme": scope.get("scheme", "http"),
                "network.protocol.version": scope.get("http_version", "1.1"),
            },
        )
        return RequestTrace(self._tracer, span)

    def middleware(self) -> Middleware:
        """Return the layer that begins and ends the traces."""
        return Middleware(TracingMiddleware, self)

    def close(self) -> None:
        """Send what is left; waits for the exporter, so not on the loop, and not for long."""
        # A daemon: a collector that takes a request and never answers must not hold up the end.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            cause = "the collector does not answer"
            logger.warning("traces lost", extra={"url": collector_url(), "cause": cause})


class TracingMiddleware:
    """Wraps all layers of a gateway whose traces are on."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; sets `scope[TRACE]`, and the header `traceresponse` of the answer."""
        if scope["type"] != "http" or scope["path"] in _UNTRACED:
            await self._app(scope, receive, send)
            return
        trace = scope[TRACE] = self._tracing.begin(scope)
        span = trace.span

        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note_status(span, message["status"])
                header = (b"traceresponse", _response_of(span))
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        try:
            await self._app(scope, receive, forward)
        finally:
            route = scope.get("route")
            if isinstance(route, Route):
                span.set_attribute("http.route", route.path)
                span.update_name(f"{_method_of(scope)} {route.path}")
            span.end()


def open_tracing() -> Tracing:
    """Set up the traces of this process; raises `ConfigError`."""
    # It writes at WARNING what is wrong with the headers of a client.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    return Tracing(tracer_provider())


class _Headers(Getter[Mapping[str, str]]):
    """Reads headers, whose names ASGI gives in small letters."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        """Return the values of a header."""
        value = carrier.get(key.lower())
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        """List the names."""
        return list(carrier)


_HEADERS = _Headers()


def _method_of(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "_OTHER"


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(Status(StatusCode.ERROR))


def _response_of(span: Span) -> bytes:
    """Write the W3C's header that tells a client which trace its request has."""
    context = span.get_span_context()
    trace, one = format_trace_id(context.trace_id), format_span_id(context.span_id)
    return f"00-{trace}-{one}-{context.trace_flags:02x}".encode()
