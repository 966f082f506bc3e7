"""Models that requests load, over HTTP and with a fake supervisor."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.metrics.metrics import Metrics
from gateway.parts import parts_of
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError
from protocol.process.control import ModelInfo, Phase
from protocol.wire import messages as m
from tests.fakes.supervisor import FakeSupervisor
from tests.gateway.inprocess import Running, running, until


@contextlib.asynccontextmanager
async def routing(
    folder: Path, *names: str, **settings: Any
) -> AsyncIterator[tuple[Running, FakeSupervisor]]:
    async with (
        FakeSupervisor(folder, *names) as supervisor,
        running(folder, models_dir="models", control=supervisor.path, **settings) as gateway,
    ):
        yield gateway, supervisor


async def complete(gateway: Running, model: str | None, query: str = "") -> httpx.Response:
    body = {"prompt": "hi there", "n_predict": 2}
    if model is not None:
        body["model"] = model
    return await gateway.post(f"/completion{query}", body)


async def states(gateway: Running) -> dict[str, str]:
    listed = (await gateway.client.get("/models")).json()["data"]
    return {model["id"]: model["status"]["value"] for model in listed}


def said(response: httpx.Response) -> str:
    message: str = response.json()["error"]["message"]
    return f"{response.status_code} {message}"


async def test_an_action_on_a_slot_needs_its_model(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", "b") as (gateway, supervisor):
        nothing = await gateway.client.post("/slots/0?action=erase")
        assert said(nothing) == "400 model name is missing from the request"
        other = await gateway.post("/slots/0?action=erase", {"model": "b"})
        assert supervisor.orders == ["load b"]
        assert said(other).startswith("501 This server does not support slots action")


async def test_a_request_loads_the_model_that_it_names(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", "b") as (gateway, supervisor):
        assert await states(gateway) == {"a": "unloaded", "b": "unloaded"}
        answer = await complete(gateway, "b")
        assert (answer.status_code, answer.json()["model"]) == (200, "b")
        assert supervisor.orders == ["load b"]
        assert await states(gateway) == {"a": "unloaded", "b": "loaded"}
        (_, shown) = (await gateway.client.get("/v1/models")).json()["data"]
        assert shown["status"]["args"] == ["llamapool", "worker"]
        assert shown["meta"]["n_vocab"] == 1000
        assert shown["can_remove"] is False
        assert (await gateway.client.get("/v1/models/b")).json() == shown
        assert (await gateway.client.get("/v1/models/z")).status_code == 404


@pytest.mark.parametrize(
    ("model", "query", "answer"),
    [
        (None, "", "400 model name is missing from the request"),
        ("", "", "400 model name is missing from the request"),
        ("z", "", "400 model 'z' not found"),
        ("a", "?autoload=false", "400 model is not loaded"),
        ("a", "?autoload=0", "400 model is not loaded"),
    ],
)
async def test_refusals_are_llama_servers(
    tmp_path: Path, model: str | None, query: str, answer: str
) -> None:
    async with routing(tmp_path, "a", "b") as (gateway, supervisor):
        assert said(await complete(gateway, model, query)) == answer
        assert supervisor.orders == []


async def test_without_autoload_a_model_must_be_loaded_by_hand(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", models_autoload=False) as (gateway, supervisor):
        assert said(await complete(gateway, "a")) == "400 model is not loaded"
        assert (await gateway.post("/models/load", {"model": "a"})).json() == {"success": True}
        await until(lambda: "a" in supervisor.workers)
        assert (await complete(gateway, "a", "?autoload=true")).status_code == 200
        assert (await complete(gateway, "a")).status_code == 200


async def test_a_gateway_with_nothing_loaded_is_well_and_says_what_it_is(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", models_max=2) as (gateway, _):
        assert (await gateway.client.get("/health")).json()["status"] == "ok"
        assert (await gateway.client.get("/readyz")).status_code == 200
        assert (await gateway.client.get("/slots")).json() == []
        props = (await gateway.client.get("/props")).json()
        assert (props["role"], props["max_instances"], props["models_autoload"]) == (
            "router",
            2,
            True,
        )
        assert (await gateway.client.get("/props?model=a")).json()["model_alias"] == "a"


async def test_load_and_unload_answer_in_llama_servers_words(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, _):
        for path, body, answer in (
            ("/models/unload", {"model": "a"}, "400 model is not running"),
            ("/models/unload", {"model": "z"}, "400 model is not found"),
            ("/models/load", {"model": "z"}, "404 model is not found"),
            ("/models/load", {}, "404 model is not found"),
        ):
            assert said(await gateway.post(path, body)) == answer
        assert (await gateway.post("/models/load", {"model": "a"})).json() == {"success": True}
        again = await gateway.post("/models/load", {"model": "a"})
        assert said(again) == "400 model is already running"
        assert (await complete(gateway, "a")).status_code == 200
        assert (await gateway.post("/models/unload", {"model": "a"})).json() == {"success": True}
        await until(lambda: not gateway.pool.health().n_workers)
        await unloaded(gateway, "a")


async def asked_before_the_worker_dials(
    gateway: Running, supervisor: FakeSupervisor
) -> "asyncio.Task[httpx.Response]":
    """Ask while the supervisor's report has come and the worker's greeting has not."""
    supervisor.late["a"] = asyncio.Event()
    asked = asyncio.create_task(complete(gateway, "a"))
    async with asyncio.timeout(10):
        while (await states(gateway))["a"] != "loaded":
            pass
    return asked


async def test_a_request_waits_for_a_worker_that_serves_but_has_not_dialled(tmp_path: Path) -> None:
    """With several gateways, the supervisor's report may come before the worker's greeting."""
    async with routing(tmp_path, "a") as (gateway, supervisor):
        asked = await asked_before_the_worker_dials(gateway, supervisor)
        assert not asked.done()
        supervisor.late["a"].set()
        assert (await asked).status_code == 200


async def test_a_request_does_not_wait_for_a_worker_that_is_gone(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        asked = await asked_before_the_worker_dials(gateway, supervisor)
        supervisor.tell("a", Phase.GONE, -9)
        assert said(await asked) == "503 Loading model"
        supervisor.late["a"].set()
        await until(lambda: gateway.pool.health().n_workers == 1)


async def unloaded(gateway: Running, name: str) -> None:
    async with asyncio.timeout(10):
        while (await states(gateway))[name] != "unloaded":
            pass


async def test_a_model_that_cannot_be_loaded_tells_everybody_why(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        supervisor.failing.add("a")
        supervisor.held["a"] = asyncio.Event()
        asked = [asyncio.create_task(complete(gateway, "a")) for _ in range(3)]
        await until(lambda: "waiting=3" in repr_of(gateway))
        supervisor.held["a"].set()
        for answer in await asyncio.gather(*asked):
            assert said(answer) == "500 model name=a failed to load: it is broken"
        assert supervisor.orders == ["load a"]
        status = (await gateway.client.get("/models")).json()["data"][0]["status"]
        assert status["value"] == "unloaded"
        assert (status["failed"], status["exit_code"]) == (True, 78)


def repr_of(gateway: Running) -> str:
    return repr(gateway.models)


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", "b", models_max=1) as (gateway, supervisor):
        supervisor.held["a"] = asyncio.Event()
        first = asyncio.create_task(complete(gateway, "a"))
        await until(lambda: supervisor.orders == ["load a"])
        second = asyncio.create_task(complete(gateway, "b"))
        await until(lambda: "b:1" in repr_of(gateway))
        second.cancel()
        await until(lambda: "b:" not in repr_of(gateway))
        supervisor.held["a"].set()
        assert (await first).status_code == 200
        assert supervisor.orders == ["load a"]
        assert await states(gateway) == {"a": "loaded", "b": "unloaded"}


async def test_the_idle_model_makes_room_and_the_busy_one_does_not(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", "b", models_max=1) as (gateway, supervisor):
        assert (await complete(gateway, "a")).status_code == 200
        supervisor.workers["a"].go_silent()  # whatever runs there now does not end by itself
        busy = asyncio.create_task(complete(gateway, "a"))
        await until(lambda: "requests=1" in repr_of(gateway))
        waits = asyncio.create_task(complete(gateway, "b"))
        await until(lambda: "b:1" in repr_of(gateway))
        refused = await gateway.post("/models/load", {"model": "b"})
        assert said(refused) == "429 model limit reached, try again later"
        assert supervisor.orders == ["load a"]
        busy.cancel()
        assert (await waits).status_code == 200
        assert supervisor.orders == ["load a", "unload a", "load b"]


async def test_a_reload_lists_what_is_new_and_ends_what_has_gone(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", "b") as (gateway, supervisor):
        await complete(gateway, "a")
        supervisor.models = [ModelInfo(name="b"), ModelInfo(name="c")]
        listed = (await gateway.client.get("/models?reload=1")).json()["data"]
        assert [model["id"] for model in listed] == ["b", "c"]
        assert supervisor.orders == ["load a", "reload", "unload a"]


async def test_a_reload_that_fails_says_why_and_changes_nothing(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        supervisor.error = "models.ini:3: no such option"
        answer = await gateway.client.get("/models?reload=1")
        assert said(answer) == "500 models not reloaded: models.ini:3: no such option"
        assert await states(gateway) == {"a": "unloaded"}


async def test_every_change_is_an_event(tmp_path: Path) -> None:
    async with (
        routing(tmp_path, "a") as (gateway, supervisor),
        gateway.client.stream("GET", "/models/sse") as response,
    ):
        assert response.headers["content-type"] == "text/event-stream"
        lines = response.aiter_lines()
        assert (await complete(gateway, "a")).status_code == 200
        supervisor.tell("a", Phase.GONE, 1, "crashed")
        events: list[Any] = []
        while len(events) < 4:
            line = await anext(lines)
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
    started, loading, loaded, gone = events
    assert started == {"model": "a", "event": "model_status", "data": {"status": "loading"}}
    assert loading["event"] == "status_change"
    assert loading["data"]["progress"]["current"] == "text_model"
    assert loaded["data"]["info"]["id"] == "a"
    assert gone["data"] == {"status": "unloaded", "exit_code": 1}


async def test_a_key_hears_of_its_models_only(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        '[[key]]\nname = "some"\nkey = "some"\nscopes = ["admin"]\nmodels = ["b"]\n'
        '[[key]]\nname = "all"\nkey = "all"\n'
    )
    headers = {one: {"Authorization": f"Bearer {one}"} for one in ("some", "all")}
    async with (
        routing(tmp_path, "a", "b", api_key_file=(str(path),)) as (gateway, _),
        gateway.client.stream("GET", "/models/sse", headers=headers["some"]) as response,
    ):
        lines = response.aiter_lines()
        for name in ("a", "b"):
            body = {"prompt": "hi", "n_predict": 2, "model": name}
            answer = await gateway.post("/completion", body, headers=headers["all"])
            assert answer.status_code == 200
        heard: list[Any] = []
        while len(heard) < 3:
            line = await anext(lines)
            if line.startswith("data: "):
                heard.append(json.loads(line[6:])["model"])
        assert heard == ["b"] * 3
        for order in ("load", "unload"):
            refused = await gateway.post(
                f"/models/{order}", {"model": "a"}, headers=headers["some"]
            )
            assert refused.status_code == 403
        hidden = await gateway.client.delete("/models?model=a", headers=headers["some"])
        assert said(hidden) == "404 model name=a is not found"


@pytest.mark.slow
async def test_a_supervisor_that_comes_back_is_believed(tmp_path: Path) -> None:
    async with routing(tmp_path, "a", "b") as (gateway, supervisor):
        await complete(gateway, "a")
        router = gateway.models
        assert router is not None
        supervisor.hang_up()
        await until(lambda: not router.channel.is_open)
        assert (await complete(gateway, "a")).status_code == 200
        assert said(await complete(gateway, "b")) == "503 The supervisor does not answer"
        await supervisor.listen()
        await until(lambda: router.channel.is_open)
        assert (await complete(gateway, "b")).status_code == 200
        assert await states(gateway) == {"a": "loaded", "b": "loaded"}


async def test_what_waits_for_a_slot_of_a_model_that_is_unloaded_is_told_so(
    tmp_path: Path,
) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await complete(gateway, "a")
        supervisor.workers["a"].go_silent()
        asked = [asyncio.create_task(complete(gateway, "a")) for _ in range(5)]
        await until(lambda: gateway.pool.health().n_deferred == 3)
        await gateway.post("/models/unload", {"model": "a"})
        answers = [said(answer) for answer in await asyncio.gather(*asked)]
        assert answers.count("503 model 'a' was unloaded") >= 2
        assert {answer[:3] for answer in answers} == {"503"}


async def test_a_model_whose_workers_sleep_says_so(tmp_path: Path) -> None:
    async with routing(tmp_path, "a") as (gateway, supervisor):
        await complete(gateway, "a")
        heartbeat = m.Heartbeat(step=1, busy=0, is_sleeping=True)
        await supervisor.workers["a"].send(heartbeat)
        async with asyncio.timeout(10):
            while await states(gateway) != {"a": "sleeping"}:
                await supervisor.workers["a"].send(heartbeat)


async def test_fixed_models_cannot_be_ordered(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for method, path in (("POST", "load"), ("POST", "unload"), ("GET", "sse")):
            answer = await gateway.client.request(method, f"/models/{path}", json={})
            assert answer.status_code == 501
            assert "Start it with `--models-dir`" in said(answer)


@pytest.mark.parametrize(
    "config", [GatewayConfig(models_dir="x"), GatewayConfig(models_on_demand=True)]
)
def test_a_gateway_alone_cannot_load_models(config: GatewayConfig) -> None:
    with pytest.raises(ConfigError, match="only `llamapool serve`"):
        parts_of(config, Metrics())


@pytest.mark.slow
async def test_a_model_makes_no_room_while_another_gateway_streams_with_it(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    endpoints = [f"ipc://{tmp_path}/{name}/w.sock" for name in ("one", "other")]
    async with FakeSupervisor(tmp_path, "a", "b", endpoints=endpoints) as supervisor:
        supervisor.step_s = 0.01
        shared = {"models_dir": "models", "models_max": 1, "control": supervisor.path}
        async with (
            running(tmp_path / "one", **shared) as one,
            running(tmp_path / "other", **shared) as other,
        ):
            long = {"model": "a", "prompt": "x y", "n_predict": 100, "ignore_eos": True}
            streaming = asyncio.create_task(one.post("/completion", long))
            await until(
                lambda: "a" in supervisor.workers and bool(one.pool.transport.streams.by_id)
            )
            waiting = asyncio.create_task(complete(other, "b"))
            await until(lambda: "keep a" in supervisor.orders)
            assert list(supervisor.workers) == ["a"]
            assert (await streaming).json()["tokens_predicted"] == 100
            assert (await waiting).status_code == 200
            assert list(supervisor.workers) == ["b"]
            told = supervisor.orders
            assert told == [
                *("load a", "unload a", "keep a", "idle a"),
                *("unload a", "yield a", "load b"),
            ]
