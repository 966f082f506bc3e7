"""Opens a trace for each request, and puts it into the scope for the layers below."""

import logging
import threading
from collections.abc import Mapping

from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_span_id, format_trace_id
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.pool.tasks.trace import TRACE
from gateway.tracing.provider import collector_url, propagator, tracer_provider
from gateway.tracing.request_trace import RequestTrace
from protocol.version import version

logger = logging.getLogger(__name__)

_UNTRACED = frozenset({"/health", "/v1/health", "/livez", "/readyz", "/metrics"})
"""Monitors ask for these every few seconds: most spans would be theirs."""
_CLOSE_S = 5.0
"""Seconds for the spans that are left to reach the collector."""
_LONGEST_PATH = 200
"""Characters of a path in a span."""
_BAGGAGE = b"baggage"
"""Removed before OpenTelemetry reads the headers: it logs a line for each malformed entry."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "PATCH"})
"""Any other method is `_OTHER`, as the conventions say, so that there are few names of spans."""


class Tracing:
    """The traces of this gateway."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._propagator = propagator()
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
            self._propagator.extract(headers, getter=_HEADERS),
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
        """Send the spans that are left. Blocks for up to 5 s, so it must not run on the loop."""
        # A daemon: a collector that never answers must not keep the process alive.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            cause = "the collector does not answer"
            logger.warning(
                "traces lost",
                extra={
                    "url": collector_url(),
                    "cause": cause,
                    "action": "the last spans are dropped",
                    "hint": "does the collector run, and can this host reach it?",
                },
            )


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
                header = (b"traceresponse", _traceresponse(span))
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
    # At WARNING, this logger writes a line for each malformed header of a client.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    return Tracing(tracer_provider())


class _Headers(Getter[Mapping[str, str]]):
    """Reads headers; ASGI gives their names in lower case."""

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


def _traceresponse(span: Span) -> bytes:
    """Return the value of W3C's `traceresponse`, which names the trace of the request."""
    context = span.get_span_context()
    trace, span_id = format_trace_id(context.trace_id), format_span_id(context.span_id)
    return f"00-{trace}-{span_id}-{context.trace_flags:02x}".encode()
