"""GET /admin/usage, /v1/usage and /admin/requests of a whole gateway."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.pool.requests.record import state_of
from gateway.routes.operators import usage as endpoints
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until

ADMIN, USER = {"Authorization": "Bearer root"}, {"Authorization": "Bearer user"}


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Running]:
    folder = str(tmp_path / "usage")
    async with running(
        tmp_path, usage_dir=folder, api_key=("user",), api_key_admin=("root",)
    ) as found:
        await found.add_worker()
        yield found


async def complete(pool: Running, headers: dict[str, str], **fields: Any) -> httpx.Response:
    answer = await pool.post("/completion", {"prompt": "a b c", **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


async def settled(pool: Running) -> None:
    """Wait until every request is over, its line written."""
    await until(lambda: not pool.pool.requests.unsettled)


async def usage(pool: Running, path: str = "/admin/usage") -> dict[str, Any]:
    headers = ADMIN if path.startswith("/admin") else USER
    answer = await pool.client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_sums_are_what_the_answers_said(pool: Running) -> None:
    told = [(await complete(pool, USER)).json() for _ in range(3)]
    await complete(pool, ADMIN)
    await settled(pool)
    found = await usage(pool)
    rows = {row["requests"]: row for row in found["rows"]}
    assert set(rows) == {1, 3}
    assert rows[3]["prompt_tokens"] == sum(one["tokens_evaluated"] for one in told)
    assert rows[3]["completion_tokens"] == sum(one["tokens_predicted"] for one in told)
    assert found["total"]["requests"] == 4
    assert found["unwritten_requests"] == 0
    own = await usage(pool, "/v1/usage?by=model,day")
    assert own["total"] == {k: v for k, v in rows[3].items() if k not in ("key", "model")}
    assert set(own["rows"][0]) >= {"model", "day"}


async def test_a_flood_of_questions_leaves_threads_to_others(
    pool: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, asking = threading.Event(), []

    def slow(*_: object) -> dict[str, Any]:
        asking.append(1)
        assert may_answer.wait(10)
        return {}

    monkeypatch.setattr(endpoints, "_sum_up", slow)
    monkeypatch.setattr(endpoints, "_MAX_OPEN", 10)
    asked = [asyncio.ensure_future(usage(pool, "/v1/usage")) for _ in range(10)]
    await until(lambda: len(asking) == 2)
    await until(lambda: len(pool.pool.requests.unsettled) == 10)
    answer = await pool.client.get("/v1/usage", headers=USER)
    assert answer.status_code == 429 and "retry-after" in answer.headers
    await asyncio.wait_for(asyncio.to_thread(lambda: None), 5)
    assert len(asking) == 2
    may_answer.set()
    assert await asyncio.gather(*asked) == [{}] * 10
    assert len(asking) == 10


def open_files() -> list[str]:
    return [one.resolve().name for one in Path("/proc/self/fd").iterdir()]


async def test_questions_leave_no_more_files_open_than_may_be_asked_at_once(pool: Running) -> None:
    """SQLite keeps what a reader has opened while the writer is connected, and uses it again."""
    await complete(pool, USER)
    await asyncio.gather(*(usage(pool) for _ in range(20)))
    n_readers = open_files().count("usage.sqlite") - 1
    assert n_readers <= endpoints._AT_ONCE + 1  # one may have read the day's sums at the start


async def test_only_admins_see_everybodys(pool: Running) -> None:
    for path in ("/admin/usage", "/admin/requests", "/admin/requests/x"):
        assert (await pool.client.get(path, headers=USER)).status_code == 403
        assert (await pool.client.get(path)).status_code == 401
    assert (await pool.client.get("/v1/usage")).status_code == 401


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("by=planet", "by"),
        ("by=key,key", "by"),
        ("from=yesterday", "from"),
        ("to=2026-02-30", "to"),
        ("from=20261122", "from"),
        ("key=" + "x" * 600, "key"),
        ("until=2026-11-22", "until"),
    ],
)
async def test_a_bad_question_names_its_parameter(pool: Running, query: str, param: str) -> None:
    answer = await pool.client.get(f"/admin/usage?{query}", headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_one_cannot_ask_for_the_usage_of_others(pool: Running) -> None:
    answer = await pool.client.get("/v1/usage?key=alice", headers=USER)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "key")


async def test_an_id_is_kept_from_the_client_to_the_end(pool: Running) -> None:
    given = {**USER, "X-Request-Id": "my id".replace(" ", "/") + '"{}'}
    answer = await complete(pool, given)
    assert answer.headers["x-request-id"] == 'my/id"{}'
    await settled(pool)
    found = await pool.client.get('/admin/requests/my/id"{}', headers=ADMIN)
    (row,) = found.json()["requests"]
    assert (row["state"], row["status"], row["n_predicted"]) == ("ended", 200, 3)
    (attempt,) = row["tasks"][0]["attempts"]
    assert attempt["worker"] == "w0"
    assert attempt["why"]["route"] == "load"
    assert [one["worker"] for one in attempt["why"]["compared"]] == ["w0"]
    missing = await pool.client.get("/admin/requests/never", headers=ADMIN)
    assert missing.status_code == 404


@pytest.mark.parametrize("bad", [b"", b"a b", b"x" * 129, b"caf\xe9"])
async def test_an_id_that_cannot_be_passed_on_is_replaced(pool: Running, bad: bytes) -> None:
    headers = [(b"X-Request-Id", bad), (b"Authorization", b"Bearer user")]
    answer = await pool.client.get("/v1/models", headers=headers)
    assert len(answer.headers["x-request-id"]) == 32


async def test_what_runs_is_listed_with_its_place(tmp_path: Path) -> None:
    options = FakeOptions(free_running=False, n_slots=1, n_prefetch=0)
    async with running(tmp_path, api_key=("root",)) as pool:
        fake = await pool.add_worker(options)
        asked = [asyncio.create_task(complete(pool, ADMIN)) for _ in range(3)]
        await fake.got(m.Generate)
        await fake.step()
        await until(lambda: states(pool) == ["generating", "queued", "queued"])
        found = await listed(pool)
        assert (found["n_running"], found["n_queued"]) == (1, 2)
        assert [row["state"] for row in found["requests"]].count("queued") == 2
        places = [row["tasks"][0]["place"] for row in found["requests"]]
        assert sorted(filter(None, places)) == [1, 2]
        assert len((await listed(pool, "?state=queued"))["requests"]) == 2
        assert len((await listed(pool, "?limit=1"))["requests"]) == 1
        assert (await listed(pool, "?key=nobody"))["requests"] == []
        (key,) = {row["key"] for row in found["requests"]}
        assert len((await listed(pool, f"?key={key}"))["requests"]) == 3
        assert {record.client for record in pool.pool.requests.running()} == {"127.0.0.1"}
        for query in ("limit=0", "limit=1001", "limit=-1", "limit=x", "planet=x"):
            answer = await pool.client.get(f"/admin/requests?{query}", headers=ADMIN)
            assert answer.status_code == 400, query
            assert answer.json()["error"]["param"] == query.partition("=")[0]
        while not all(one.done() for one in asked):
            await fake.step()
            await asyncio.sleep(0)


async def test_what_the_end_of_the_gateway_cuts_is_paid_by_its_key(tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    async with running(tmp_path, usage_dir=str(folder), api_key=("user",)) as pool:
        fake = await pool.add_worker(FakeOptions(free_running=False))
        asked = asyncio.create_task(complete(pool, USER))
        await fake.got(m.Generate)
        await fake.step()
        await until(lambda: states(pool) == ["generating"])
    await asyncio.gather(asked, return_exceptions=True)
    (line,) = "".join(one.read_text() for one in folder.glob("*.jsonl")).splitlines()
    assert json.loads(line)["key"]


def states(pool: Running) -> list[str]:
    records = pool.pool.requests.running()
    return sorted(state_of(task) for one in records for task in one.tasks)


async def listed(pool: Running, query: str = "") -> dict[str, Any]:
    answer = await pool.client.get(f"/admin/requests{query}", headers=ADMIN)
    found: dict[str, Any] = answer.json()
    return found


async def test_without_a_folder_no_usage_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("root",)) as pool:
        answer = await pool.client.get("/admin/usage", headers=ADMIN)
        assert answer.status_code == 501
        assert "--usage-dir" in answer.text
    async with running(tmp_path) as pool:
        assert (await pool.client.get("/v1/usage")).status_code == 403
