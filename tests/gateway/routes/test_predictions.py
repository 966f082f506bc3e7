"""Vertex AI's prediction route: other endpoints' requests, several in one body."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.app import build_app
from gateway.http import answer_budget
from gateway.metrics.metrics import Metrics
from gateway.parts import parts_of
from gateway.routes.predictions import for_vertex, format_of
from gateway.settings import gateway_config
from protocol.config.config import GatewayConfig, PoolConfig
from protocol.errors import ConfigError
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until

CHAT: Any = {"messages": [{"role": "user", "content": "one two"}]}


async def predicted(gateway: Running, *instances: Any) -> list[Any]:
    response = await gateway.post("/predict", {"instances": instances})
    assert response.status_code == 200, response.text
    predictions: list[Any] = response.json()["predictions"]
    return predictions


async def test_each_instance_is_answered_by_its_endpoint(tmp_path: Path) -> None:
    async with running(tmp_path, predict_route="/predict", health_route="/well") as gateway:
        await gateway.add_worker()
        chat, native, tokens, models = await predicted(
            gateway,
            {"@requestFormat": "chatCompletions", **CHAT, "stream": True},
            {"@requestFormat": "/completion", "prompt": "a b"},
            {"@requestFormat": "tokenize", "content": "a b c"},
            {"@requestFormat": "models"},
        )
        assert chat["choices"][0]["message"]["content"] == "one two"
        assert native["content"] == "a b"
        assert len(tokens["tokens"]) == 3
        assert models["data"][0]["id"] == "fake"
        assert (await gateway.client.get("/well")).json()["status"] == "ok"


async def test_what_is_wrong_with_an_instance_is_its_own_answer(tmp_path: Path) -> None:
    async with running(tmp_path, predict_route="/predict") as gateway:
        await gateway.add_worker()
        *wrong, right = await predicted(
            gateway,
            3,
            {},
            {"@requestFormat": "nothing"},
            {"@requestFormat": "completion", "prompt": "a", "temperature": "hot"},
            {"@requestFormat": "completion", "prompt": "a"},
        )
        assert [one["error"]["code"] for one in wrong] == [400] * 4
        assert wrong[3]["error"]["param"] == "temperature"
        assert right["content"] == "a"


async def test_a_turn_of_the_loop_starts_one_instance(tmp_path: Path) -> None:
    loop, n_turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal n_turns
        n_turns += 1
        loop.call_soon(turn)

    async with running(tmp_path, predict_route="/predict") as gateway:
        turn()
        before = n_turns
        assert len(await predicted(gateway, *[{"@requestFormat": "/livez"}] * 128)) == 128
        assert n_turns - before > 128


async def test_an_endpoint_that_only_streams_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, predict_route="/predict") as gateway:
        await gateway.add_worker()
        (found,) = await predicted(gateway, {"@requestFormat": "/pool/events"})
        assert "does not support streaming" in found["error"]["message"]


async def test_the_answers_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_budget, "_MAX_OF_ONE", 1000)
    async with running(tmp_path, predict_route="/predict") as gateway:
        await gateway.add_worker()
        instance = {"@requestFormat": "tokenize", "content": "a " * 100}
        found = await predicted(gateway, *[instance] * 8)
        assert {len(one["tokens"]) for one in found if "tokens" in one} == {101}
        refused = [one["error"]["message"] for one in found if "error" in one]
        assert refused
        assert "ask for less" in refused[0]


@pytest.mark.parametrize("body", [{}, {"instances": 3}, {"instances": [{}] * 129}], ids=str)
async def test_instances_must_be_a_list_of_at_most_128(tmp_path: Path, body: Any) -> None:
    async with running(tmp_path, predict_route="/predict") as gateway:
        response = await gateway.post("/predict", body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "instances"


async def test_leaving_gives_up_all_instances(tmp_path: Path) -> None:
    async with running(tmp_path, predict_route="/predict") as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        instance = {"@requestFormat": "completion", "prompt": "a b", "ignore_eos": True}
        asking = asyncio.create_task(predicted(gateway, instance, instance))
        await worker.got(m.Generate)
        await until(lambda: gateway.pool.health().slots_processing == 2)
        asking.cancel()
        await worker.got(m.Cancel)
        await worker.step()
        await until(lambda: gateway.pool.health().slots_idle == 2)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chatCompletions"),
        ("/apply-template", "applyTemplate"),
        ("/v1/messages/count_tokens", "messagesCountTokens"),
        ("/completion", "completion"),
    ],
)
def test_a_format_is_the_words_of_a_path(path: str, name: str) -> None:
    assert format_of(path) == name


def test_the_environment_of_vertex_sets_paths_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GatewayConfig(port=1234)
    assert for_vertex(config, {"AIP_PREDICT_ROUTE": "/x"}) == config
    found = for_vertex(config, {"AIP_MODE": "PREDICTION", "AIP_HEALTH_ROUTE": "well"})
    assert (found.port, found.predict_route, found.health_route) == (8080, "/predict", "/well")
    with pytest.raises(ConfigError, match="AIP_HTTP_PORT"):
        for_vertex(config, {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "x"})
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    monkeypatch.setenv("AIP_HTTP_PORT", "9000")
    assert gateway_config(PoolConfig(), {"bind": ("ipc://x",)}).port == 9000


@pytest.mark.parametrize("path", ["x", "/{x}", "/{x:nothing}", "/x?y", "/ x"])
def test_a_route_that_is_no_path_ends_the_start(path: str) -> None:
    for config in (GatewayConfig(health_route=path), GatewayConfig(predict_route=path)):
        metrics = Metrics()
        with pytest.raises(ConfigError, match=r"_route .*: must be a path such as /ping"):
            build_app(config, parts_of(config, metrics), metrics)


def test_a_route_that_is_taken_ends_the_start() -> None:
    config, metrics = GatewayConfig(predict_route="/completion"), Metrics()
    with pytest.raises(ConfigError, match="/completion"):
        build_app(config, parts_of(config, metrics), metrics)
