"""What a client sees of routing, and what the workers are told of tenants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from protocol.wire import messages as m
from protocol.wire.cached import Cached
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import Running, running
from tests.gateway.metrics.samples import read_samples

LONG = "".join(f"w{i} " for i in range(300))
PROMPT = {"prompt": LONG, "n_predict": 2}


def tasks(workers: Sequence[FakeWorker]) -> list[m.Generate]:
    return [one for w in workers for one in w.received if isinstance(one, m.Generate)]


def salts(workers: Sequence[FakeWorker]) -> list[str]:
    return [one.salt for one in tasks(workers)]


async def ask(gateway: Running, body: dict[str, Any], **kwargs: Any) -> tuple[str, str, str]:
    """Ask, and return what the headers tell."""
    response = await gateway.post("/completion", {**PROMPT, **body}, **kwargs)
    assert response.status_code == 200, response.text
    names = ("worker", "route", "cached")
    worker, route, cached = (response.headers[f"x-llamapool-{name}"] for name in names)
    return worker, route, cached


async def test_headers_tell_where_a_request_went_and_why(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for name in ("w0", "w1"):
            await gateway.add_worker(FakeOptions(name=name))
        first = await ask(gateway, {})
        assert first == ("w0", "load", "0")
        gateway.workers[0].engine.n_cached = 250
        for stream in (False, True):
            assert await ask(gateway, {"stream": stream}) == ("w0", "prefix", "250")
        assert await ask(gateway, {"id_slot": 2}) == ("w1", "pinned", "0")
        both = await gateway.post("/completion", {**PROMPT, "n": 3, "cache_prompt": False})
        assert set(both.headers["x-llamapool-worker"].split(", ")) == {"w0", "w1"}


async def test_what_a_worker_evicted_is_not_looked_for_there(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        worker = await gateway.add_worker()
        await ask(gateway, {})
        assert (await ask(gateway, {}))[1] == "prefix"
        held = tuple(run for one in worker.engine.held.everything() for run in one.added)
        assert held
        await worker.send(Cached(removed=held))
        assert (await gateway.client.get("/slots")).status_code == 200  # it has been heard now
        assert (await ask(gateway, {}))[1] == "load"


async def test_a_page_of_another_origin_may_read_the_headers(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker()
        response = await gateway.post("/completion", PROMPT, headers={"Origin": "http://a.b"})
        assert "x-llamapool-route" in response.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("settings", "n_namespaces"),
    [
        ({}, 1),
        ({"api_key": ("a",)}, 1),
        ({"api_key": ("a", "b")}, 2),
        ({"api_key": ("a", "b"), "cache_isolation": "none"}, 1),
    ],
)
async def test_a_prompt_is_reused_for_its_own_key_only(
    tmp_path: Path, settings: dict[str, Any], n_namespaces: int
) -> None:
    async with running(tmp_path, **settings) as gateway:
        await gateway.add_worker()
        keys = ("a", "b") if len(settings.get("api_key", ())) == 2 else ("a", "a")
        routes = [
            (await ask(gateway, {}, headers={"Authorization": f"Bearer {key}"}))[1] for key in keys
        ]
        assert routes[1] == ("load" if n_namespaces == 2 else "prefix")
        found = salts(gateway.workers)
        assert len(set(found)) == n_namespaces
        assert all(found) == (n_namespaces == 2)
        assert not any(key in found for key in keys)
        assert len({one.tenant for one in tasks(gateway.workers)}) == len(set(keys))


async def test_a_client_may_split_its_namespace_on_every_api(tmp_path: Path) -> None:
    message = {"role": "user", "content": LONG}
    bodies: dict[str, dict[str, Any]] = {
        "/completion": {"prompt": LONG},
        "/completions": {"prompt": LONG, "tokenize": True},
        "/v1/completions": {"prompt": LONG, "max_tokens": 2},
        "/v1/chat/completions": {"messages": [message]},
        "/v1/responses": {"input": LONG},
        "/v1/messages": {"messages": [message], "max_tokens": 2},
        "/infill": {"input_prefix": LONG, "input_suffix": "b"},
    }
    async with running(tmp_path) as gateway:
        await gateway.add_worker()
        for path, body in bodies.items():
            for extra in ({}, {"cache_salt": "mine"}):
                response = await gateway.post(path, body | extra)
                assert response.status_code == 200, response.text
            bad = await gateway.post(path, body | {"cache_salt": 3})
            assert bad.status_code == 400
            assert bad.json()["error"]["param"] == "cache_salt"
        found = salts(gateway.workers)
        assert len(set(found[0::2])) == len(set(found[1::2])) == 1
        assert set(found[0::2]) == {""} != set(found[1::2])


async def test_a_session_stays_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for name in ("w0", "w1"):
            await gateway.add_worker(FakeOptions(name=name))
        headers = {"X-Session-ID": "mine"}
        await ask(gateway, {"prompt": "a b c"}, headers=headers)
        for i in range(3):
            told = await ask(gateway, {"prompt": f"{i} d"}, headers=headers)
            assert told == ("w0", "session", "0")


async def test_the_metrics_count_routes_and_what_they_were_worth(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        worker = await gateway.add_worker()
        await ask(gateway, {})
        worker.engine.n_cached = 200
        await ask(gateway, {})
        found = read_samples((await gateway.client.get("/metrics")).text)
        for branch in ("load", "prefix"):
            assert found["llamapool_routed_tasks_total", (branch, "fake")] == 1
        assert found["llamapool_route_cached_tokens_total", ("fake",)] == 200
        assert found["llamapool_route_expected_cached_tokens_total", ("fake",)] > 100
