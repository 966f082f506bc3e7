"""The live feed over real HTTP: what it shows, who may read it, and what it costs nobody."""

import asyncio
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import Message

from gateway.feed.endpoint import PoolEventStream
from gateway.feed.feed import MAX_READERS
from gateway.feed.feed_state import FeedState
from gateway.feed.state import N_REQUESTS
from gateway.pool.tasks.task import RouteReason
from gateway.pool.watch.events import MAX_EVENTS, EventKind, PoolEvents
from protocol.config.config import GatewayConfig
from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.feed.reader import keys_of, reading
from tests.gateway.inprocess import Running, running, until

pytestmark = pytest.mark.slow

SLOW = FakeOptions(free_running=False)
CHAT = {"messages": [{"role": "user", "content": "word " * 20}], "stream": True}


async def test_the_first_state_is_the_pools_status(gateway: Running) -> None:
    async with reading(gateway.client) as reader:
        state = reader.state
        assert state["pool"]["status"] == "ok"
        assert state["workers"]["w0"]["state"] == "ready"
        assert state["workers"]["w0"]["n_ctx"] == 4096
        assert state["load"]["w0"]["slots"] == ".."
        assert state["models"]["fake"]["state"] == "loaded"
        assert reader.rights["may_load"]
        assert not reader.rights["may_order"]
        assert "admin.sock" in reader.rights["why_not"]


async def test_cells_follow_a_task_from_its_prompt_to_its_end(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway, reading(gateway.client) as reader:
        worker = await gateway.add_worker(SLOW)
        await reader.until(lambda s: "w0" in s["workers"])
        asking = asyncio.create_task(gateway.post("/v1/chat/completions", CHAT))
        await worker.got(m.Generate)
        await worker.step()
        await reader.until(lambda s: s["load"]["w0"]["slots"] in ("r.", "w."))
        await worker.step()
        await reader.until(lambda s: s["load"]["w0"]["slots"] == "w.")
        before = reader.state["load"]["w0"]["tokens"][0]
        assert before > 0
        await worker.step()
        await reader.until(lambda s: s["load"]["w0"]["tokens"][0] > before)
        while not asking.done():
            await worker.step()
            await asyncio.sleep(0)
        await reader.until(lambda s: s["load"]["w0"]["slots"] == "..")


async def test_a_slot_that_reads_is_as_full_as_what_it_has_read(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway, reading(gateway.client) as reader:
        worker = await gateway.add_worker(SLOW)
        await reader.until(lambda s: "w0" in s["workers"])
        asking = asyncio.create_task(gateway.post("/v1/chat/completions", CHAT))
        await worker.got(m.Generate)
        key = worker.envelopes[-1].task
        started = m.Started(slot=1, n_prompt=1000, n_cached=100)
        for n_read, shown in ((0, 100), (300, 400), (900, 1000), (1100, 1000)):
            read = m.PromptRead(n_read=n_read, n_cached=100)
            await worker.send(m.Envelope(key, started if not n_read else read))
            await reader.until(lambda s, n=shown: s["load"]["w0"]["tokens"] == [0, n])  # type: ignore[misc]
            assert reader.state["load"]["w0"]["slots"] == ".r"
        await worker.send(m.Envelope(key, m.Delta(text="x", tokens=(1,), n_predicted=1)))
        await reader.until(lambda s: s["load"]["w0"]["slots"] == ".w")
        assert reader.state["load"]["w0"]["tokens"] == [0, 1001]
        asking.cancel()


async def test_what_waits_is_counted_without_addresses(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway, reading(gateway.client) as reader:
        await gateway.add_worker(FakeOptions(free_running=False, n_slots=1, n_prefetch=0))
        asking = [asyncio.create_task(gateway.post("/v1/chat/completions", CHAT)) for _ in range(3)]
        await reader.until(lambda s: s["queue"] == {"fake": {"": 2}})
        assert reader.state["models"]["fake"]["n_waiting"] == 2
        for one in asking:
            one.cancel()
        await reader.until(lambda s: not s["queue"])


async def test_the_last_requests_say_where_they_went_and_not_from_where(gateway: Running) -> None:
    async with reading(gateway.client) as reader:
        for i in range(N_REQUESTS + 2):
            headers = {"X-Request-Id": f"ask-{i}"}
            await gateway.post("/v1/chat/completions", {**CHAT, "max_tokens": 2}, headers=headers)
        await reader.until(lambda s: f"ask-{N_REQUESTS + 1}" in str(s["requests"]))
        rows = list(reader.state["requests"].values())
        assert len(rows) == N_REQUESTS
        assert [one["request_id"] for one in rows] == [f"ask-{i + 2}" for i in range(N_REQUESTS)]
        last = rows[-1]
        assert (last["model"], last["worker"], last["status"]) == ("fake", "w0", 200)
        assert (last["n_predicted"], last["finish"]) == (2, "limit")
        assert last["route"] in set(RouteReason)
        assert "127.0.0.1" not in str(rows)


async def test_a_worker_that_dies_and_comes_back_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway, reading(gateway.client) as reader:
        worker = await gateway.add_worker()
        await reader.until(lambda s: "w0" in s["workers"])
        await worker.die()
        await reader.until(lambda s: not s["workers"])
        await gateway.add_worker()
        await reader.until(lambda s: "w0" in s["workers"])
        await reader.until(lambda s: len(s["events"]) == 3)
        events = list(reader.state["events"].values())
        assert [(one["kind"], one["name"]) for one in events] == [
            ("ready", "w0"),
            ("lost", "w0"),
            ("ready", "w0"),
        ]
        assert events[1]["why"]


async def test_merged_states_are_what_a_new_reader_gets(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway, reading(gateway.client) as reader:
        for name in ("w0", "w1", "w2"):
            await gateway.add_worker(FakeOptions(name=name, step_s=0.001))
        await asyncio.gather(*(gateway.post("/v1/chat/completions", CHAT) for _ in range(40)))
        await gateway.workers[1].die()
        await gateway.idle()
        await reader.until(lambda s: set(s["workers"]) == {"w0", "w2"})
        async with reading(gateway.client) as fresh:
            # Samples and rates go on meanwhile; all else stands still.
            async with asyncio.timeout(10):
                while any(reader.state[n] != fresh.state[n] for n in fresh.state if n != "samples"):
                    await reader.next()
                    await fresh.next()


async def test_nothing_is_computed_while_nobody_looks(gateway: Running) -> None:
    async with reading(gateway.client):
        assert gateway.feed.n_readers == 1
    await until(lambda: gateway.feed.n_readers == 0)
    assert repr(gateway.feed) == "<PoolFeed readers=0 None>"


async def test_a_reader_wakes_no_worker_and_sends_it_nothing(gateway: Running) -> None:
    (worker,) = gateway.workers
    worker.engine.is_sleeping = True
    await worker.send(worker.engine.heartbeat())
    await until(lambda: gateway.pool.status.workers()[0].state == "sleeping")
    await worker.got(m.Opened)  # what the gateway says to each worker that joins
    worker.received.clear()
    async with reading(gateway.client) as reader:
        assert reader.state["workers"]["w0"]["state"] == "sleeping"
        await worker.wait_heartbeats(2)
        await reader.next()
    assert not worker.received


def has_workers(n: int, state: dict[str, dict[str, Any]]) -> bool:
    return len(state["workers"]) >= n


async def test_a_reader_that_stops_to_read_gets_the_newest_state_and_no_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = weakref.WeakSet[FeedState]()
    begin = FeedState.__init__

    def noted(state: FeedState, *args: Any) -> None:
        begin(state, *args)
        alive.add(state)

    monkeypatch.setattr(FeedState, "__init__", noted)
    may_send, sent = asyncio.Event(), list[bytes]()

    async def send(message: Message) -> None:
        await may_send.wait()
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    def told() -> set[str]:
        changes = (orjson.loads(one.partition(b"data: ")[2] or b"{}") for one in sent[2:])
        return {name for change in changes for name in change.get("workers", {})}

    async with running(tmp_path) as gateway, reading(gateway.client) as reader:
        stream = PoolEventStream(gateway.feed, GatewayConfig())
        scope = {"method": "GET", "key": "", "is_admin": True, "is_operator": False}
        slow = asyncio.create_task(stream(scope, receive, send))
        may_send.set()
        await until(lambda: len(sent) == 2)  # what it may do, and the first state
        may_send.clear()
        for i in range(5):
            await gateway.add_worker(FakeOptions(name=f"w{i}"))
            await reader.until(partial(has_workers, i + 1))
        assert len(alive) <= 4
        may_send.set()
        await until(lambda: told() >= {f"w{i}" for i in range(5)})
        # One may have been on its way before, and one was; the last has all the rest.
        assert len(sent) - 2 <= 3
        slow.cancel()
        await asyncio.wait([slow])


async def test_an_end_of_the_gateway_ends_the_stream(gateway: Running) -> None:
    async with reading(gateway.client) as reader:
        gateway.feed.end()
        await reader.to_end()


async def test_more_readers_than_the_bound_are_refused(gateway: Running) -> None:
    async with asyncio.TaskGroup() as group:
        done = asyncio.Event()

        async def hold() -> None:
            async with reading(gateway.client):
                await done.wait()

        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=gateway.url, limits=limits) as client:
            for _ in range(MAX_READERS):
                group.create_task(hold())
            await until(lambda: gateway.feed.n_readers == MAX_READERS)
            answer = await client.get("/pool/events")
        done.set()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")


@pytest.mark.parametrize(
    ("has_keys", "headers", "status"),
    [
        (False, {"Origin": "https://elsewhere.example"}, 403),
        (True, {}, 401),
        (True, {"X-Api-Key": "user"}, 403),
    ],
)
async def test_who_may_not_read(
    tmp_path: Path, has_keys: bool, headers: dict[str, str], status: int
) -> None:
    settings = keys_of(tmp_path) if has_keys else {}
    async with running(tmp_path, **settings) as gateway:
        answer = await gateway.client.get("/pool/events", headers=headers)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(("key", "may_order"), [("boss", True), ("watcher", False)])
async def test_who_may_read_and_who_of_them_may_give_orders(
    tmp_path: Path, key: str, may_order: bool
) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        running(tmp_path, **keys_of(tmp_path)) as gateway,
        reading(gateway.client, headers) as reader,
    ):
        assert reader.rights["key"] == key
        assert reader.rights["may_order"] == reader.rights["may_load"] == may_order
        assert (reader.rights["why_not"] == "") == may_order


async def test_what_waits_is_counted_by_the_names_of_keys(tmp_path: Path) -> None:
    boss = {"Authorization": "Bearer boss"}
    async with (
        running(tmp_path, **keys_of(tmp_path)) as gateway,
        reading(gateway.client, boss) as reader,
    ):
        await gateway.add_worker(FakeOptions(free_running=False, n_slots=1, n_prefetch=0))
        asking = [
            asyncio.create_task(
                gateway.post("/v1/chat/completions", CHAT, headers={"X-Api-Key": key})
            )
            for key in ("boss", "user", "user")
        ]
        await reader.until(lambda s: sum(s["queue"].get("fake", {}).values()) == 2)
        assert set(reader.state["queue"]["fake"]) <= {"user", "boss"}
        for one in asking:
            one.cancel()


async def test_one_gateway_shows_what_the_others_know(tmp_path: Path) -> None:
    folder = str(tmp_path / "gateways")
    (tmp_path / "other").mkdir()
    async with (
        running(tmp_path, siblings=folder) as one,
        running(tmp_path / "other", siblings=folder) as two,
    ):
        for gateway in (one, two):
            await gateway.siblings.open()
            await gateway.add_worker(FakeOptions(free_running=False, n_slots=1, n_prefetch=0))
        asking = [asyncio.create_task(two.post("/v1/chat/completions", CHAT)) for _ in range(3)]
        async with reading(one.client) as reader:
            await reader.until(lambda s: s["queue"] == {"fake": {"": 2}})
            assert len(reader.state["pool"]["seen"]) == 2
            two.siblings.close()
            await reader.until(lambda s: not s["queue"])
        for task in asking:
            task.cancel()
        one.siblings.close()


def test_events_are_bounded_and_so_are_their_texts() -> None:
    events = PoolEvents(clock=lambda: 5.0)
    for i in range(3 * MAX_EVENTS):
        events.note(EventKind.LOST, name=f"w{i}", why="x" * 10_000)
    kept = events.latest()
    assert len(kept) == MAX_EVENTS
    assert (kept[-1].number, kept[-1].time, len(kept[-1].why)) == (300, 5.0, 200)
