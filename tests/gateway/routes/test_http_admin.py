"""What needs an admin key, and what tenants see of each other."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from gateway.app import build_app
from gateway.http.origin.auth import AdminOnly
from gateway.metrics.metrics import Metrics
from gateway.parts import parts_of
from protocol.config.config import GatewayConfig
from protocol.wire import facts
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from tests.fakes.echo import FakeEngine, FakeOptions
from tests.gateway.http.test_sites import CHANGES
from tests.gateway.inprocess import Running, running

KEYS = {"api_key": ("one", "two"), "api_key_admin": ("boss",)}


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_what_changes_the_server_for_all_needs_an_admin_key(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    async with running(tmp_path, props=True, **KEYS) as gateway:
        await gateway.add_worker()
        statuses = {}
        for name in ("one", "two", "boss", "wrong"):
            answer = await gateway.client.request(method, path, json=body, headers=key(name))
            statuses[name] = answer.status_code
        assert (statuses["one"], statuses["two"], statuses["wrong"]) == (403, 403, 401)
        assert statuses["boss"] not in (401, 403)


async def test_the_only_key_may_do_everything(tmp_path: Path) -> None:
    async with running(tmp_path, props=True, api_key=("one",)) as gateway:
        await gateway.add_worker()
        assert (await gateway.post("/props", {}, headers=key("one"))).status_code == 200


USES = {
    *("/v1/completions", "/completion", "/completions", "/infill"),
    *("/v1/chat/completions", "/chat/completions", "/v1/responses", "/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/apply-template"),
    *("/v1/audio/transcriptions", "/audio/transcriptions"),
    *("/v1/chat/completions/control", "/v1/chat/completions/input_tokens"),
    *("/chat/completions/input_tokens", "/v1/responses/input_tokens", "/responses/input_tokens"),
    *("/v1/embeddings", "/embeddings", "/embedding"),
    *("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    *("/tokenize", "/detokenize"),
    *("/v1/stream", "/v1/streams/lookup"),  # each of one's own
}
"""Endpoints that take a body and leave the server as it was."""


def test_every_endpoint_that_takes_a_body_only_uses_the_server_or_needs_an_admin() -> None:
    config = GatewayConfig()
    app: Any = build_app(config, parts_of(config, Metrics()), Metrics())
    while not hasattr(app, "routes"):
        app = app._app
    routes = [route for route in app.routes if isinstance(route, Route)]
    changing = [route for route in routes if not (route.methods or set()) <= {"GET", "HEAD"}]
    unsure = [
        route.path
        for route in changing
        if not (route.path in USES or isinstance(route.endpoint, AdminOnly) or is_refusal(route))
    ]
    assert len(changing) > len(USES)
    assert unsure == []


def is_refusal(route: Route) -> bool:
    return getattr(route.endpoint, "__module__", "") == "gateway.routes.unsupported"


async def test_several_keys_without_an_admin_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path, api_key=("one", "two")):
            pass
    assert "no key is an admin's" in caplog.text


async def slots(gateway: Running, name: str, path: str = "/slots") -> list[dict[str, Any]]:
    answer = (await gateway.client.get(path, headers=key(name))).json()
    return answer if isinstance(answer, list) else answer["slots"]


@pytest.fixture
async def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pool in which the tenant `one` runs something that is nobody else's business."""
    async with running(tmp_path, **KEYS) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False, n_slots=1))
        params = SamplingParams(generation_prompt="secret", penalty_prompt=(1, 2))

        def reports(engine: FakeEngine) -> tuple[facts.SlotReport, ...]:
            (job,) = engine.running.values()
            report = facts.SlotReport(
                id=0,
                is_processing=True,
                task_id=job.envelope.task.id,
                n_past=77,
                prompt="secret",
                generated="secret",
                params=params,
            )
            return (report,)

        monkeypatch.setattr(FakeEngine, "reports", reports)
        asked = asyncio.create_task(
            gateway.post("/completion", {"prompt": "a b c"}, headers=key("one"))
        )
        await worker.got(m.Generate)
        await worker.step()
        yield gateway
        await worker.step(5)
        await asked


async def test_a_slot_tells_its_own_tenant_and_admins_what_it_does(secret: Running) -> None:
    for name in ("one", "boss"):
        (row,) = await slots(secret, name)
        assert (row["n_prompt_tokens"], row["params"]["generation_prompt"]) == (77, "secret")
    (row,) = await slots(secret, "two")
    assert sorted(row) == ["id", "is_processing", "n_ctx", "speculative", "state"]


async def test_health_shows_slots_to_keys_only_and_no_texts(secret: Running) -> None:
    path = "/health?include_slots"
    for hidden in (path, "/health?include%5Fslots=1"):
        assert (await secret.client.get(hidden)).status_code == 401
    assert (await secret.client.get("/health")).status_code == 200
    (row,) = await slots(secret, "one", path)
    assert row["n_prompt_tokens"] == 77
    assert "secret" not in repr(row)
    assert "penalty_prompt_tokens" not in row
    (row,) = await slots(secret, "two", path)
    assert "params" not in row


async def test_a_tenant_is_the_client_behind_a_trusted_proxy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []
    async with running(tmp_path, trusted_proxies=("127.0.0.0/8",)) as gateway:
        await gateway.add_worker()
        submit = gateway.pool.submit

        def spy(*args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["origin"].tenant)
            return submit(*args, **kwargs)

        gateway.pool.submit = spy  # type: ignore[method-assign]  # what a test wants to see
        with caplog.at_level(logging.INFO):
            for forwarded in ("9.9.9.9", "6.6.6.6, 2001:db8::7"):
                headers = {"X-Forwarded-For": forwarded}
                await gateway.post("/completion", {"prompt": "a"}, headers=headers)
    assert seen == ["9.9.9.9", "2001:db8::/64"]
    assert "client=2001:db8::7 " in caplog.text
