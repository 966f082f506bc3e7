"""What a trace of a request holds, and that nothing of it is there while traces are off."""

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway import parts
from gateway.tracing.provider import collector_url, tracer_provider
from protocol.errors import ConfigError
from protocol.wire import messages as m
from protocol.wire.facts import Timings, Usage
from protocol.wire.messages import Envelope
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = {
    "messages": [{"role": "user", "content": "one two three"}],
    "max_tokens": 4,
    "ignore_eos": True,
    "temperature": 0.5,
}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    monkeypatch.setattr("gateway.tracing.tracing.tracer_provider", lambda: provider)
    return memory


@pytest.fixture
async def gateway(tmp_path: Path, exporter: InMemorySpanExporter) -> AsyncIterator[Running]:
    async with running(tmp_path, otel=True, metrics=True) as one:
        yield one


async def finished(exporter: InMemorySpanExporter, n: int) -> dict[str, ReadableSpan]:
    """Wait for n spans and return them by name; a worker's are called after it."""
    await until(lambda: len(exporter.get_finished_spans()) >= n)
    spans: Sequence[ReadableSpan] = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    found = {}
    for span in spans:
        parent = names.get(span.parent.span_id, "") if span.parent is not None else ""
        is_part = parent.startswith("worker ")
        name = f"{parent}: {span.name}" if is_part else span.name
        found[f"{name} again" if name in found else name] = span
    assert len(found) == len(spans) == n
    return found


async def test_a_streamed_chat_is_a_tree_of_spans_under_its_clients(
    gateway: Running, exporter: InMemorySpanExporter
) -> None:
    worker = await gateway.add_worker()
    worker.engine.n_cached = 2
    response = await gateway.post(
        "/v1/chat/completions", CHAT | {"stream": True}, headers={"traceparent": PARENT}
    )
    assert response.headers["traceresponse"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    spans = await finished(exporter, 6)
    request, task = spans["POST /v1/chat/completions"], spans["chat fake"]
    queue, work = spans["queue"], spans["worker w0"]
    prompt, decode = spans["worker w0: prompt"], spans["worker w0: decode"]
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None and f"{request.parent.span_id:016x}" == "b7ad6b7169203331"
    tree = (task, request), (queue, task), (work, task), (prompt, work), (decode, work)
    for child, parent in tree:
        assert child.parent is not None and child.context is not None
        assert parent.context is not None and child.parent.span_id == parent.context.span_id
        assert f"{child.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
        assert parent.start_time is not None and child.start_time is not None
        assert parent.end_time is not None and child.end_time is not None
        slack_ns = 5_000_000  # two clocks: that of the loop and that of the day
        assert parent.start_time - slack_ns <= child.start_time <= child.end_time
        assert child.end_time <= parent.end_time + slack_ns
    assert request.attributes is not None and task.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.route"] == "/v1/chat/completions"
    told = dict(task.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "fake"
    assert told["gen_ai.request.max_tokens"] == told["gen_ai.usage.output_tokens"] == 4
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.usage.input_tokens"] == 3
    assert told["gen_ai.usage.cache_read.input_tokens"] == 2
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert [event.name for event in task.events] == ["gen_ai.first_token"]
    assert [event.name for event in work.events] == ["gen_ai.first_token"]
    assert work.attributes is not None and work.attributes["llamapool.route"] == "load"
    assert prompt.end_time == decode.start_time == work.events[0].timestamp
    assert decode.attributes is not None and decode.attributes["llamapool.n_predicted"] == 4


async def test_prompt_and_answer_take_what_their_worker_has_measured(
    gateway: Running, exporter: InMemorySpanExporter
) -> None:
    worker = await gateway.add_worker(FakeOptions(free_running=False))
    asked = asyncio.create_task(gateway.post("/completion", {"prompt": "a b", "n_predict": 2}))
    await worker.got(m.Generate)
    key = worker.envelopes[-1].task
    await worker.send(
        Envelope(key, m.Started(slot=0, n_prompt=2)),
        Envelope(key, m.Delta(text="x", tokens=(1,), n_predicted=1)),
    )
    await until(lambda: gateway.metrics.of_model("fake").ttft.n == 1)
    timings = Timings(prompt_ms=0.02, predicted_ms=0.03, predicted_n=1, prompt_n=2)
    usage = Usage(n_read=2, n_predicted=1)
    done = m.Done(finish=m.Finish.LIMIT, n_prompt=2, n_predicted=1, timings=timings, usage=usage)
    await worker.send(Envelope(key, done))
    assert (await asked).status_code == 200
    spans = await finished(exporter, 6)
    prompt, decode = spans["worker w0: prompt"], spans["worker w0: decode"]
    assert prompt.attributes == {"llamapool.n_read": 2, "llamapool.n_cached": 0}
    for span, ns in ((prompt, 20_000), (decode, 30_000)):
        assert span.start_time is not None and span.end_time is not None
        assert abs(span.end_time - span.start_time - ns) < 2000  # floats since 1970


async def test_a_completion_that_goes_on_elsewhere_has_a_span_for_each_worker(
    gateway: Running, exporter: InMemorySpanExporter
) -> None:
    doomed = await gateway.add_worker(FakeOptions(name="a", free_running=False))
    body = {"prompt": "one two", "n_predict": 6, "ignore_eos": True}
    asked = asyncio.create_task(gateway.post("/completion", body))
    await doomed.got(m.Generate)
    await doomed.step(3)
    await until(lambda: gateway.metrics.of_model("fake").itl.n == 2)
    await doomed.die()
    await until(lambda: gateway.pool.health().n_workers == 0)  # or it would not wait at all
    await gateway.add_worker(FakeOptions(name="b"))
    await asked
    spans = await finished(exporter, 10)
    first, second = spans["worker a"], spans["worker b"]
    assert first.end_time == spans["queue again"].start_time
    assert spans["queue again"].end_time == second.start_time
    assert len(first.events) == 1 and not second.events, "the first token came from the first one"
    told = spans["text_completion fake"].attributes
    assert told is not None and told["llamapool.n_workers"] == 2


async def test_a_client_that_leaves_and_a_request_that_fails_are_told_apart(
    gateway: Running, exporter: InMemorySpanExporter
) -> None:
    worker = await gateway.add_worker(FakeOptions(free_running=False))
    asked = asyncio.create_task(gateway.post("/v1/chat/completions", CHAT))
    await worker.got(m.Generate)
    asked.cancel()
    await worker.got(m.Cancel)
    left = (await finished(exporter, 4))["chat fake"]
    assert left.attributes is not None and left.attributes["llamapool.finish"] == "cancelled"
    assert left.status.status_code is StatusCode.UNSET and not left.events
    exporter.clear()
    response = await gateway.post("/v1/chat/completions", {"messages": 3})
    assert response.status_code == 400
    refused = (await finished(exporter, 1))["POST /v1/chat/completions"]
    assert refused.attributes is not None
    assert refused.attributes["http.response.status_code"] == 400
    assert refused.status.status_code is StatusCode.UNSET, "a client's mistake is no error of ours"


@pytest.mark.parametrize(
    "header", ["", "x" * 10_000, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ff-1-2-3", "é"]
)
async def test_a_trace_that_makes_no_sense_begins_anew(
    gateway: Running, exporter: InMemorySpanExporter, header: str
) -> None:
    await gateway.add_worker()
    answer = await gateway.client.get("/v1/models", headers={b"traceparent": header.encode()})
    assert answer.status_code == 200
    span = (await finished(exporter, 1))["GET /v1/models"]
    assert span.parent is None


async def test_a_client_may_ask_that_its_request_is_not_traced(
    gateway: Running, exporter: InMemorySpanExporter
) -> None:
    await gateway.add_worker()
    await gateway.post("/v1/chat/completions", CHAT, headers={"traceparent": PARENT[:-1] + "0"})
    await gateway.client.get("/health")
    await gateway.client.get("/metrics")
    assert not exporter.get_finished_spans()


async def test_while_traces_are_off_there_is_none(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker()
        asked = await gateway.post("/completion", {"prompt": "a"}, headers={"traceparent": PARENT})
        assert "traceresponse" not in asked.headers


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://localhost"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:secret@h:4318/x?key=secret"}, "http://h:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "h:4317"}, "h:4317"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "b"},
            "b",
        ),
    ],
)
def test_the_log_names_the_collector_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], url: str
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    assert collector_url() == url


@pytest.mark.slow
def test_the_library_is_imported_only_when_traces_are_on() -> None:
    code = (
        "import sys, gateway.cli, gateway.server, worker.cli; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_resource_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert tracer_provider().resource.attributes["service.name"] == "llamapool"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=chat,region=eu")
    attributes = tracer_provider().resource.attributes
    assert (attributes["service.name"], attributes["region"]) == ("chat", "eu")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "pool")
    assert tracer_provider().resource.attributes["service.name"] == "pool"


class Collector(BaseHTTPRequestHandler):
    """An OTLP collector: keeps what it is sent."""

    spans: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        assert self.path == "/v1/traces"
        self.spans.extend(
            span.name
            for resource in sent.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


async def test_spans_leave_for_the_endpoint_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        async with running(tmp_path, otel=True) as gateway:
            await gateway.add_worker()
            await gateway.post("/v1/chat/completions", CHAT)
        server.shutdown()
    parts = {"queue", "worker w0", "prompt", "decode"}
    assert {"POST /v1/chat/completions", "chat fake", *parts} == set(Collector.spans)


def test_a_span_on_the_console_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line of a gateway becomes a line of the log: a request was two hundred."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    provider = tracer_provider()
    provider.get_tracer("test").start_span("GET /").end()
    provider.shutdown()
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["name"] == "GET /"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/xml"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "256"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "0"),
        ("OTEL_PROPAGATORS", "b3"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-3"),
        ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "many"),
    ],
)
def test_a_setting_that_cannot_be_met_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "opentelemetry.propagate", raising=False)
    with pytest.raises(ConfigError, match=name):
        parts._tracing()


async def test_what_a_client_writes_about_its_trace_fills_no_log(
    gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {
        "baggage": "\xe9," * 2000,
        "tracestate": "No Tracestate " + "x" * 9000,
        "traceparent": PARENT,
    }
    headers = {name.encode(): value.encode("latin-1") for name, value in odd.items()}
    for name, value in (*headers.items(), (b"traceparent", b"00-" + b"f" * 9000)):
        answer = await gateway.client.get("/v1/models", headers={name: value})
        assert answer.status_code == 503
    await gateway.client.get("/v1/models", headers=headers)
    assert [one for one in caplog.records if one.name.startswith("opentelemetry")] == []
