"""The load generator against a whole gateway with fake workers, and against servers that fail."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.bench.cli import bench, measured
from gateway.bench.client.connection import address_of
from gateway.bench.client.dialects import BenchEndpoint, BenchTarget
from gateway.bench.client.transcript import Role
from gateway.bench.drive import BenchLoad, BenchRun
from gateway.bench.lengths import Lengths
from gateway.bench.plan import LoadShape
from gateway.bench.report import document, text
from gateway.bench.summary import Slo, Summary, summarize
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running

SHORT = LoadShape(prompt=Lengths(6, 6), output=Lengths(4, 4))


async def run(url: str, load: BenchLoad, shape: LoadShape = SHORT, **target: object) -> BenchRun:
    return await measured(BenchTarget(url=url, **target), shape, load)  # type: ignore[arg-type]  # a test's choice


def of(run: BenchRun, role: Role = Role.LOAD) -> Summary:
    return summarize(one for one in run.transcripts if one.role is role)


@pytest.mark.parametrize(
    "endpoint", [BenchEndpoint.CHAT, BenchEndpoint.COMPLETIONS, BenchEndpoint.NATIVE]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_every_token_is_seen_and_counted(
    gateway: Running, endpoint: BenchEndpoint, stream: bool
) -> None:
    load = BenchLoad(concurrency=3, requests=7)
    found = of(await run(gateway.url, load, endpoint=endpoint, stream=stream))
    assert (found.n_ok, found.n_failed, found.n_output) == (7, 0, 28)
    assert found.output_tokens and found.output_tokens.max == 4
    assert found.prompt_tokens and found.prompt_tokens.min == 6
    assert (found.ttft_ms is not None) == stream


async def test_a_conversation_sends_its_history_with_the_answers(gateway: Running) -> None:
    shape = dataclasses.replace(SHORT, turns=3, shared_prefix=5)
    load = BenchLoad(requests=2, concurrency=2)
    found = await run(f"{gateway.url}/v1", load, shape, endpoint=BenchEndpoint.COMPLETIONS)
    prompts = [one.counts.n_prompt for one in found.transcripts if one.conversation == 0]
    assert prompts == [11, 21, 31]  # the prefix, then each question and answer
    assert [one.turn for one in found.transcripts if one.conversation == 1] == [0, 1, 2]


async def test_an_open_loop_asks_when_it_was_drawn(gateway: Running) -> None:
    found = await run(gateway.url, BenchLoad(rate=400.0, requests=20))
    assert of(found).n_ok == 20
    assert 0 <= found.late_s < 5
    starts = [one.start_s for one in found.transcripts]
    assert max(starts) - min(starts) > 0.01


async def test_a_duration_ends_the_asking(gateway: Running) -> None:
    found = of(await run(gateway.url, BenchLoad(concurrency=2, duration_s=0.2)))
    assert found.n_ok >= 2 and found.n_failed == 0


async def test_background_streams_decode_all_the_while_and_are_apart(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(n_slots=4, step_s=0.001))
        load = BenchLoad(requests=3, background=2, background_tokens=20)
        found = await run(gateway.url, load)
        await gateway.idle()
    assert of(found).n_ok == 3
    behind = of(found, Role.BACKGROUND)
    assert behind.n_cut == 2 and behind.n_failed == 0 and behind.itl_ms


async def test_warm_up_is_not_measured(gateway: Running) -> None:
    found = await run(gateway.url, BenchLoad(requests=2, warmup=3))
    assert of(found).n_ok == 2
    assert of(found, Role.WARMUP).n_ok == 3


async def test_embeddings_count_their_inputs(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(pooling="mean"))
        shape = dataclasses.replace(SHORT, batch=8)
        found = of(
            await run(gateway.url, BenchLoad(requests=3), shape, endpoint=BenchEndpoint.EMBEDDINGS)
        )
    assert found.n_ok == 3
    assert found.inputs_per_s == pytest.approx(8 * found.requests_per_s)


async def test_refusals_are_errors_with_their_status(gateway: Running) -> None:
    found = await run(gateway.url, BenchLoad(requests=2), fields={"temperature": "x"})
    assert of(found).errors == {"http_400": 2}
    assert "temperature" in found.transcripts[0].message


@contextlib.asynccontextmanager
async def raw(*answers: bytes) -> AsyncIterator[str]:
    """Serve these bytes, one answer a connection, and hang up."""
    left = iter(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(next(left, b""))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", "broken"),
        (b"nonsense\r\n\r\n", "broken"),
        (HEAD + b"5\r\ndata", "broken"),
        (HEAD + b"0\r\n\r\n", "broken"),
        (HEAD + b"9\r\ndata: x\n\n\r\n0\r\n\r\n", "error_event"),
        (HEAD + b'16\r\ndata: {"choices": 3}\n\n\r\n0\r\n\r\n', "error_event"),
    ],
)
async def test_whatever_a_server_does_is_an_error_of_a_kind(answer: bytes, kind: str) -> None:
    async with raw(answer) as url:
        found = await run(url, BenchLoad(requests=1), model="m")
    assert of(found).errors == {kind: 1}


async def test_nobody_there_is_no_connection() -> None:
    async with raw() as url:
        pass
    assert of(await run(url, BenchLoad(requests=2), model="m")).errors == {"connect": 2}


async def test_a_kept_connection_that_closed_is_dialled_anew(gateway: Running) -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n"
    whole += b'{"content":"a","stop":true,"stop_type":"x" }'
    async with raw(whole, whole) as url:
        load = BenchLoad(requests=2)
        found = await run(url, load, model="m", endpoint=BenchEndpoint.NATIVE, stream=False)
    assert of(found).n_ok == 2


async def test_silence_is_a_timeout(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker(FakeOptions(free_running=False))
        found = await run(gateway.url, BenchLoad(requests=1), timeout_s=0.2)
    assert of(found).errors == {"timeout": 1}


async def test_a_cancelled_run_reports_what_there_is(gateway: Running) -> None:
    task = asyncio.create_task(run(gateway.url, BenchLoad(duration_s=60.0)))
    async with asyncio.timeout(10):
        while gateway.metrics.tasks.total() < 3:  # noqa: ASYNC110 - it announces nothing
            await asyncio.sleep(0.002)
    task.cancel()
    found = await task
    assert found.is_cut_short and of(found).n_ok >= 2
    assert "cut short" in text(found, Slo())


async def test_reports_hold_the_load_the_background_and_the_client(gateway: Running) -> None:
    found = await run(gateway.url, BenchLoad(requests=2))
    written = document(found, Slo(), {"url": "u"}, with_requests=True)
    assert json.loads(json.dumps(written))["load"]["n_ok"] == 2
    assert len(written["requests"]) == 2 and written["client"]["events"] > 0
    assert "us an event" in text(found, Slo())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a:1", ("a", 1, False, "")),
        ("a:1/v1/", ("a", 1, False, "")),
        ("https://a/x/v1", ("a", 443, True, "/x")),
        ("http://[::1]:80", ("::1", 80, False, "")),
        ("é.test:1", ("xn--9ca.test", 1, False, "")),
    ],
)
def test_addresses_are_read(url: str, expected: tuple[object, ...]) -> None:
    found = address_of(url)
    assert (found.host, found.port, found.is_tls, found.prefix) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://a"], "not the URL of a server"),
        (["http://a..b:1"], "no host has such a name"),
        (["http://a b:1"], "not the URL of a server"),
        (["http://a:1/é"], "not the URL of a server"),
        (["a:1", "--json", "/nonexistent/x.json"], "--json /nonexistent/x.json: No such file"),
        (["a:1", "--prompt-tokens", "x"], "is no length"),
        (["a:1", "--rate", "3", "--concurrency", "2"], "use one of them"),
        (["a:1", "--field", "a"], "has no value"),
        (["a:1", "--field", "a=x"], "is no JSON"),
        (["a:1", "--batch", "2"], "--endpoint embeddings"),
        (["a:1", "--mixed", "2", "--no-stream"], "needs streams"),
        (["a:1", "--api-key", "a\nb"], "cannot be printed"),
        (["a:1", "--timeout", "nan"], "nan is no number"),
        (["a:1", "--rate", "inf", "--duration", "1"], "not in the range 0<=x<=100000"),
        (["a:1", "--model", "\udcff"], "is no UTF-8 text"),
        (["a:1", "--field", "\udcff=1"], "is no UTF-8 text"),
    ],
)
def test_wrong_usage_is_said(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_run_without_an_answer_exits_with_1() -> None:
    result = CliRunner().invoke(bench, ["127.0.0.1:9", "--requests", "1"])
    assert result.exit_code == 1
    assert "1 connect" in result.output


def test_figures_that_cannot_be_written_are_an_error_after_the_report() -> None:
    result = CliRunner().invoke(bench, ["127.0.0.1:9", "--requests", "1", "--json", "/dev/full"])
    assert result.exit_code == 1
    assert "1 connect" in result.output
    assert "--json /dev/full: No space left on device" in result.output


def test_a_file_of_figures_may_have_any_name(tmp_path: Path) -> None:
    file = tmp_path / "\udcff.json"
    CliRunner().invoke(bench, ["127.0.0.1:9", "--requests", "1", "--json", str(file)])
    assert json.loads(file.read_text())["settings"]["file"] == f"{tmp_path}/\ufffd.json"
