"""Where spans are sent: a tracer provider set up by OpenTelemetry's environment variables.

OpenTelemetry's SDK reads sampler, resource, batches, endpoint and headers (`OTEL_...`); this module
reads only which exporter to use. The extra `llamapool[otel]` installs the SDK and OTLP over HTTP.
"""

import os
import sys
from importlib import import_module
from urllib.parse import urlsplit

from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
)

from protocol.errors import ConfigError
from protocol.version import version

_NAME = "llamapool"
_PROPAGATORS = "OTEL_PROPAGATORS"
_DELAY, _TIMEOUT = "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT"
_QUEUE, _BATCH = "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
_EXPORTER, _PROTOCOL = "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"
_TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DEFAULT_ENDPOINT = "http://localhost"
_OTLP = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}


def tracer_provider() -> TracerProvider:
    """Return the provider of this process; raises `ConfigError` that names the variable.

    OpenTelemetry itself raises `ValueError` for a limit of spans, which it names.
    """
    given = Resource.create()
    own = {}
    if str(given.attributes["service.name"]).startswith("unknown_service"):
        own["service.name"] = _NAME
    if "service.version" not in given.attributes:
        own["service.version"] = version()
    provider = TracerProvider(resource=given.merge(Resource(own)), shutdown_on_exit=False)
    exporter = _exporter()
    if exporter is not None:
        provider.add_span_processor(_batches(exporter))
    return provider


def propagator() -> TextMapPropagator:
    """Return what reads the headers of clients; raises `ConfigError` that names the variable."""
    try:
        from opentelemetry.propagate import get_global_textmap  # its import reads the variable
    except ValueError as error:
        raise ConfigError(f"{_PROPAGATORS}: {error}") from error
    return get_global_textmap()


def _batches(exporter: SpanExporter) -> BatchSpanProcessor:
    for name in (_DELAY, _TIMEOUT, _QUEUE, _BATCH):
        text = os.environ.get(name, "").strip()
        if text and not (text.isascii() and text.isdigit() and int(text)):
            raise ConfigError(f"{name}: must be a whole number above 0, but is {text!r}")
    try:
        return BatchSpanProcessor(exporter)
    except ValueError as error:
        raise ConfigError(f"{_QUEUE}: must be at least {_BATCH}, which is 512 if unset") from error


def collector_url() -> str:
    """Return the collector's address for the log, without user, password, path and query."""
    url = next(filter(None, map(os.environ.get, _ENDPOINTS)), _DEFAULT_ENDPOINT)
    scheme, colon, rest = url.rpartition("://")
    return scheme + colon + urlsplit(f"//{rest}").netloc.rpartition("@")[2]


def _line(span: ReadableSpan) -> str:
    """Write a span as one line; OpenTelemetry's own form has fifty, each a line of the log."""
    return f"{span.to_json(indent=None)}\n"


def _exporter() -> SpanExporter | None:
    name = os.environ.get(_EXPORTER, "otlp").strip() or "otlp"
    if name == "none":
        return None
    if name == "console":
        return ConsoleSpanExporter(out=sys.stdout, formatter=_line)
    if name != "otlp":
        raise ConfigError(f"{_EXPORTER}: must be otlp, console or none, but is {name!r}")
    variable = _TRACES_PROTOCOL if os.environ.get(_TRACES_PROTOCOL) else _PROTOCOL
    protocol = os.environ.get(variable) or "http/protobuf"
    if protocol not in _OTLP:
        raise ConfigError(f"{variable}: must be {' or '.join(_OTLP)}, but is {protocol!r}")
    try:
        module = import_module(_OTLP[protocol])
    except ImportError as error:
        package = f"opentelemetry-exporter-otlp-proto-{protocol.partition('/')[0]}"
        raise ConfigError(f"{variable}={protocol}: the package {package} is missing") from error
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter
