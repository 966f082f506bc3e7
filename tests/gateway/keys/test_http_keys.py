"""What a key opens and how much it may use, over real HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import Running, running, until

KEYS = """
[[key]]
name = "{name}"
key = "{name}"
{fields}
"""
PROMPT = {"prompt": "a b c", "n_predict": 2}


def keys(folder: Path, **fields: str) -> dict[str, Any]:
    """Write a key file with keys of these names, each its own secret."""
    path = folder / "keys.toml"
    tables = [KEYS.format(name=name, fields=text) for name, text in fields.items()]
    path.write_text("".join(tables))
    return {"api_key_file": (str(path),)}


def as_(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def ask(gateway: Running, name: str, **body: Any) -> httpx.Response:
    return await gateway.post("/completion", {**PROMPT, **body}, headers=as_(name))


async def finished(worker: FakeWorker, asked: asyncio.Future[httpx.Response]) -> httpx.Response:
    """Let a worker step until a request is answered."""
    while not asked.done():
        await worker.step()
        await asyncio.sleep(0.002)
    return await asked


async def test_each_scope_opens_its_own_paths(tmp_path: Path) -> None:
    settings = keys(
        tmp_path,
        user="",
        watcher='scopes = ["metrics"]',
        boss='scopes = ["admin"]',
        old="expires = 2020-01-01",
    )
    async with running(tmp_path, metrics=True, **settings) as gateway:
        await gateway.add_worker()
        expected = {
            "user": {"/v1/models": 200, "/metrics": 403, "/admin/status": 403, "/props": 200},
            "watcher": {"/v1/models": 403, "/metrics": 200, "/admin/status": 403, "/health": 200},
            "boss": {"/v1/models": 200, "/metrics": 200, "/admin/status": 200},
            "old": {"/v1/models": 401, "/metrics": 401, "/health": 200},
            "nobody": {"/v1/models": 401},
        }
        for name, paths in expected.items():
            for path, status in paths.items():
                answer = await gateway.client.get(path, headers=as_(name))
                assert answer.status_code == status, (name, path, answer.text)
                if status in (401, 403):
                    assert answer.headers["x-should-retry"] == "false"
        assert (await ask(gateway, "user")).status_code == 200
        assert (await ask(gateway, "watcher")).status_code == 403
        refused = await gateway.post("/lora-adapters", [], headers=as_("user"))
        assert refused.json()["error"]["type"] == "permission_error"
        expired = await ask(gateway, "old")
        assert expired.json()["error"]["message"] == "This API key has expired"


async def test_a_key_sees_and_uses_its_models_only(tmp_path: Path) -> None:
    settings = keys(tmp_path, all="", some='models = ["sm*"]')
    async with running(tmp_path, **settings) as gateway:
        await gateway.add_worker(FakeOptions(name="w0", model="small"))
        await gateway.add_worker(FakeOptions(name="w1", model="big"))
        for name, seen in (("all", ["small", "big"]), ("some", ["small"])):
            listing = (await gateway.client.get("/v1/models", headers=as_(name))).json()
            assert [one["id"] for one in listing["data"]] == seen
            assert [one["name"] for one in listing["models"]] == seen
        anthropic = {**as_("some"), "anthropic-version": "2023-06-01"}
        listing = (await gateway.client.get("/v1/models", headers=anthropic)).json()
        assert [one["id"] for one in listing["data"]] == ["small"]
        hidden = await gateway.client.get("/v1/models/big", headers=as_("some"))
        assert hidden.status_code == 404
        assert (await ask(gateway, "some", model="small")).status_code == 200
        assert (await ask(gateway, "all", model="big")).status_code == 200
        for path, body in (
            ("/completion", PROMPT),
            ("/tokenize", {"content": "a"}),
            ("/v1/embeddings", {"input": "a"}),
            ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            refused = await gateway.post(path, {**body, "model": "big"}, headers=as_("some"))
            assert refused.status_code == 403, path
            assert "may not use the model 'big'" in refused.json()["error"]["message"]
        assert (
            await gateway.client.get("/props?model=big", headers=as_("some"))
        ).status_code == 403
        for path in ("/slots", "/health?include_slots"):
            slots = (await gateway.client.get(path, headers=as_("some"))).json()
            assert len(slots if path == "/slots" else slots["slots"]) == 2
            assert "big" not in str(slots)


async def test_a_refusal_does_not_tell_what_a_hidden_model_is_called(tmp_path: Path) -> None:
    async with running(tmp_path, **keys(tmp_path, some='models = ["sm*"]')) as gateway:
        await gateway.add_worker(FakeOptions(model="secret-name"))
        for body in ({}, {"model": "sm-all"}, {"model": None}):
            refused = await ask(gateway, "some", **body)
            assert refused.status_code == 403
            assert "secret" not in refused.text
        for path in ("/props", "/v1/models", "/models", "/slots", "/lora-adapters", "/health"):
            answer = await gateway.client.get(path, headers=as_("some"))
            assert "secret" not in answer.text, path


async def test_an_admin_of_some_models_acts_on_no_other(tmp_path: Path) -> None:
    settings = keys(tmp_path, boss='scopes = ["admin"]\nmodels = ["small"]')
    async with running(tmp_path, **settings) as gateway:
        await gateway.add_worker(FakeOptions(name="w0", model="small", saves_slots=True))
        await gateway.add_worker(FakeOptions(name="w1", model="big", saves_slots=True))
        rows = (await gateway.client.get("/slots", headers=as_("boss"))).json()
        own = rows[0]["id"]
        answers = [
            (await gateway.post(f"/slots/{number}?action=erase", {}, headers=as_("boss")))
            for number in (own, own + len(rows))
        ]
        assert [one.status_code for one in answers] == [200, 403]


async def test_a_prediction_opens_no_path_that_the_key_does_not(tmp_path: Path) -> None:
    settings = keys(tmp_path, user="", watcher='scopes = ["infer", "metrics"]')
    async with running(tmp_path, metrics=True, predict_route="/predict", **settings) as gateway:
        await gateway.add_worker()
        body = {"instances": [{"@requestFormat": "metrics"}, {"@requestFormat": "models"}]}
        for name, expected in (("user", 403), ("watcher", None)):
            answer = await gateway.post("/predict", body, headers=as_(name))
            metrics, models = answer.json()["predictions"]
            assert models["data"]
            if expected is None:
                assert "llamapool_workers" in metrics
            else:
                assert metrics["error"]["code"] == expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_full_minute_is_a_429_in_the_shape_of_its_api(tmp_path: Path, path: str) -> None:
    settings = keys(tmp_path, a="requests_per_minute = 2", b="")
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    async with running(tmp_path, **settings) as gateway:
        await gateway.add_worker()
        for left in (1, 0):
            answer = await gateway.post(path, body, headers=as_("a"))
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
            assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        refused = await gateway.post(path, body, headers=as_("a"))
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        error = refused.json()
        assert error["error"]["type"] == "rate_limit_error"
        assert "2 requests a minute" in error["error"]["message"]
        assert error.get("type") == ("error" if path == "/v1/messages" else None)
        other = await gateway.post(path, body, headers=as_("b"))
        assert other.status_code == 200
        assert "x-ratelimit-limit-requests" not in other.headers
        assert (await gateway.client.get("/v1/models", headers=as_("a"))).status_code == 200


async def test_tokens_are_reserved_at_first_and_settled_by_what_was_computed(
    tmp_path: Path,
) -> None:
    settings = keys(tmp_path, a="tokens_per_minute = 100\ntokens_per_day = 1000")
    async with running(tmp_path, **settings) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        first = asyncio.ensure_future(ask(gateway, "a", n_predict=90))
        await until(lambda: bool(worker.engine.waiting))
        refused = await ask(gateway, "a", n_predict=90)
        assert refused.status_code == 429
        assert "100 tokens a minute" in refused.json()["error"]["message"]
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) < 10
        first.cancel()  # the client hangs up: what was not computed comes back
        await until(lambda: bool(worker.engine.cancelled))
        await worker.step()
        await until(lambda: gateway.pool.health().slots_idle == 2)
        second = asyncio.ensure_future(ask(gateway, "a", n_predict=90))
        answered = await finished(worker, second)
        assert answered.status_code == 200, answered.text
        assert answered.json()["tokens_predicted"] == 3
        assert answered.headers["x-ratelimit-remaining-tokens"] == "94"
        assert answered.headers["x-ratelimit-limit-tokens-day"] == "1000"


async def test_several_choices_whose_most_tokens_exceed_the_limit_are_answered(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, **keys(tmp_path, a="tokens_per_minute = 100")) as gateway:
        await gateway.add_worker(FakeOptions(n_slots=4))
        body = {"prompt": "a b c", "max_tokens": 90, "n": 3}
        answered = await gateway.post("/v1/completions", body, headers=as_("a"))
        assert answered.status_code == 200, answered.text
        assert len(answered.json()["choices"]) == 3
        assert int(answered.headers["x-ratelimit-remaining-tokens"]) >= 0


async def test_more_choices_than_a_key_and_the_queue_can_ever_hold_are_a_400(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, queue_size=2, **keys(tmp_path, a="concurrent = 1")) as gateway:
        await gateway.add_worker(FakeOptions(n_slots=8))
        body = {"prompt": "a b c", "max_tokens": 2}
        answered = await gateway.post("/v1/completions", {**body, "n": 3}, headers=as_("a"))
        assert answered.status_code == 200, answered.text
        for several in ({"n": 4}, {"prompt": ["a"] * 4}):
            refused = await gateway.post("/v1/completions", {**body, **several}, headers=as_("a"))
            assert refused.status_code == 400, refused.text


async def test_a_prompt_beyond_the_limit_and_a_day_that_is_used_up_are_not_tried_again(
    tmp_path: Path,
) -> None:
    settings = keys(tmp_path, a="tokens_per_day = 20", **dict.fromkeys("bc", "tokens_per_day = 5"))
    async with running(tmp_path, **settings) as gateway:
        await gateway.add_worker(FakeOptions(pooling="mean"))
        for _ in range(3):
            spent = await ask(gateway, "a", n_predict=12)
        assert spent.status_code == 429
        assert spent.headers["x-should-retry"] == "false"
        assert 0 < int(spent.headers["retry-after"]) <= 86_400
        large = await ask(gateway, "b", prompt="word " * 100)
        assert large.status_code == 429
        assert "larger than the limit" in large.json()["error"]["message"]
        embedding = await gateway.post("/v1/embeddings", {"input": "w " * 99}, headers=as_("c"))
        assert embedding.status_code == 429


async def test_a_revoked_key_is_refused_at_once_and_what_runs_goes_on(tmp_path: Path) -> None:
    settings = keys(tmp_path, a="", b="")
    async with running(tmp_path, **settings) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        running_one = asyncio.ensure_future(ask(gateway, "a"))
        await until(lambda: bool(worker.engine.waiting))
        keys(tmp_path, b="")
        assert (await ask(gateway, "a")).status_code == 401
        assert (await finished(worker, running_one)).status_code == 200
