"""Answers of every API whose worker dies in the middle: clients see those of an unbroken run."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import Running, running

TEXT = "one two three four five six"
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
    "chat with usage": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": TEXT}],
            "stream_options": {"include_usage": True},
        },
    ),
    "two choices": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": TEXT}], "n": 2},
    ),
    "completions": ("/v1/completions", {"prompt": TEXT}),
    "echo": ("/v1/completions", {"prompt": TEXT, "echo": True}),
    "responses": ("/v1/responses", {"input": TEXT}),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 50},
    ),
    "completion": ("/completion", {"prompt": TEXT}),
    "progress": ("/completion", {"prompt": TEXT, "return_progress": True}),
    "infill": ("/infill", {"input_prefix": TEXT, "input_suffix": "end"}),
}
MOVED = FakeOptions(name="a", n_slots=2, n_prefetch=0, free_running=False)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, heartbeat_s=0.1) as one:
        yield one


def plain(text: str) -> str:
    """Replace what differs from one run to the next: ids, times, slots."""
    text = re.sub(r'"(id|item_id|request_id)":"[^"]*"', r'"\1":0', text)
    text = re.sub(r'"(created|created_at|completed_at)":[\d.]+', r'"\1":0', text)
    text = re.sub(r'"(id_slot|slot_id)":\d+', r'"\1":0', text)
    return re.sub(r'"(\w+_ms|\w+_per_second|\w+_per_token_ms)":[\d.e-]+', r'"\1":0', text)


def chunks(text: str) -> list[str]:
    """The events, those of two choices in the order of the choices."""
    events = [event for event in plain(text).split("\n\n") if event and not event.startswith(":")]
    return sorted(events, key=lambda event: '"index":1,"delta"' in event)


async def broken(gateway: Running, path: str, body: dict[str, Any], n_steps: int) -> httpx.Response:
    """Ask, and let the worker die after so many steps while another one is there."""
    doomed = await gateway.add_worker(MOVED)
    asked = asyncio.create_task(gateway.post(path, body))
    n_tasks = body.get("n", 1)
    await doomed.got(m.Generate, n_tasks)
    for _ in range(n_steps):
        await doomed.step()
    if n_steps:
        await heard(gateway, n_steps)
    await gateway.add_worker(FakeOptions(name="b"))
    await doomed.die()
    return await asked


async def heard(gateway: Running, n_tokens: int) -> None:
    """Wait until every task in the pool has so many tokens."""
    tasks = gateway.pool.dispatcher.tasks
    async with asyncio.timeout(30):
        while any(len(task.answer.tokens) < n_tokens for task in tasks.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("what", STREAMS)
async def test_an_answer_whose_worker_dies_is_that_of_an_unbroken_run(
    gateway: Running, what: str, stream: bool
) -> None:
    path, body = STREAMS[what]
    body = body | {"stream": stream}
    async with FakeWorker(gateway.endpoint, FakeOptions(name="c")) as alone:
        await alone.until(lambda worker: any(isinstance(one, m.Opened) for one in worker.received))
        unbroken = await gateway.post(path, body)
    assert unbroken.status_code == 200
    told = chunks if stream else plain
    for n_steps in (0, 1, 3):
        await gone(gateway)
        response = await broken(gateway, path, body, n_steps)
        assert response.status_code == 200, n_steps
        assert told(response.text) == told(unbroken.text), n_steps
        await gateway.idle()
        await gateway.workers[-1].die()


async def gone(gateway: Running) -> None:
    async with asyncio.timeout(30):
        while gateway.pool.health().n_workers:  # noqa: ASYNC110 - the pool announces it to nobody
            await asyncio.sleep(0.002)


CALLS = tuple(
    m.Delta(tool_calls=(piece,))
    for piece in (
        m.ToolCallDelta(index=0, id="call_1", name="look", arguments=""),
        m.ToolCallDelta(index=0, arguments='{"at":'),
        m.ToolCallDelta(index=0, arguments='"it"}'),
        m.ToolCallDelta(index=1, id="call_2", name="go", arguments="{}"),
    )
)


async def test_a_tool_call_half_said_goes_on_under_its_id(gateway: Running) -> None:
    script = (m.Delta(reasoning="hm "), m.Delta(reasoning="so"), *CALLS)
    doomed = await gateway.add_worker(MOVED)
    doomed.engine.script_next = script
    body = {"messages": [{"role": "user", "content": TEXT}], "stream": True}
    asked = asyncio.create_task(gateway.post("/v1/chat/completions", body))
    await doomed.got(m.Generate)
    for _ in range(4):
        await doomed.step()
    await heard(gateway, 4)
    other = await gateway.add_worker(FakeOptions(name="b"))
    other.engine.script_next = script
    await doomed.die()
    response = await asked
    (again,) = [one for one in other.received if isinstance(one, m.Generate)]
    assert again.partial_answer is not None
    assert (again.partial_answer.n_reasoning, again.partial_answer.n_arguments) == (5, (6,))
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
    deltas = [orjson.loads(line)["choices"][0]["delta"] for line in lines]
    assert "".join(one.get("reasoning_content", "") for one in deltas) == "hm so"
    pieces = [piece for one in deltas for piece in one.get("tool_calls", ())]
    assert [piece.get("id") for piece in pieces] == ["call_1", None, None, "call_2"]
    arguments = [piece["function"]["arguments"] for piece in pieces]
    assert arguments == ["", '{"at":', '"it"}', "{}"]


async def test_a_stream_that_may_not_go_on_ends_with_an_error(tmp_path: Path) -> None:
    async with running(tmp_path, heartbeat_s=0.1, continues=False) as gateway:
        path, body = STREAMS["chat"]
        with pytest.raises(httpx.RemoteProtocolError):
            await broken(gateway, path, body | {"stream": True}, 2)
        whole = await gateway.post(path, body)
        assert whole.json()["choices"][0]["message"]["content"] == TEXT


async def test_what_kills_two_workers_gets_422_and_is_not_to_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.pool.recovery.quarantine.HELD_S", 0.1)
    keys = {"api_key_admin": ("boss",)}
    async with running(tmp_path, heartbeat_s=0.1, metrics=True, **keys) as gateway:
        gateway.client.headers["Authorization"] = "Bearer boss"
        fingerprint = await refused(gateway)
    (line,) = [one for one in caplog.records if one.getMessage() == "request quarantined"]
    assert line.__dict__["fingerprint"] == fingerprint
    assert line.__dict__["key"]


async def refused(gateway: Running) -> str:
    """Send a request that kills two workers, and let it in again; return its fingerprint."""
    path, body = STREAMS["completion"]
    asked: list[asyncio.Task[httpx.Response]] = []
    for name in "ab":
        doomed = await gateway.add_worker(FakeOptions(name=name, free_running=False))
        asked = asked or [asyncio.create_task(gateway.post(path, body))]
        await doomed.got(m.Generate)
        await doomed.die()
        await gone(gateway)
    await gateway.add_worker(FakeOptions(name="c"))
    response = await asked[0]
    again = await gateway.post(path, body | {"seed": 5})
    for one in (response, again):
        assert one.status_code == 422
        assert one.headers["x-should-retry"] == "false"
        assert "2 workers died while they computed this request" in one.json()["error"]["message"]
    (listed,) = (await gateway.client.get("/admin/quarantine")).json()["fingerprints"]
    assert (listed["n_deaths"], listed["n_refused"]) == (2, 1)
    metrics = (await gateway.client.get("/metrics")).text
    assert "llamapool_quarantined_requests 1.0" in metrics
    other = await gateway.client.delete("/admin/quarantine?fingerprint=00")
    assert other.status_code == 404
    its = f"/admin/quarantine?fingerprint={listed['fingerprint']}"
    assert (await gateway.client.delete(its)).json() == {"n_released": 1}
    assert (await gateway.client.delete("/admin/quarantine")).status_code == 404
    assert (await gateway.post(path, body)).status_code == 200
    return str(listed["fingerprint"])
