"""Who may fetch how much at once, and who is next."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.api.fields.media_links import MediaLink
from gateway.http.bodies.body import BodyBudget, BodyReservation
from gateway.media import loader
from gateway.media.loader import MediaLoader
from gateway.media.places import FetchPlaces
from protocol.config.config import GatewayConfig


class Fetches:
    """Fetches that take until they are ended, in the order of their places."""

    def __init__(self, n: int) -> None:
        self.places = FetchPlaces(n)
        self.begun: list[str] = []
        self._ends: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, *tenants: str) -> None:
        for tenant in tenants:
            self.tasks.append(asyncio.create_task(self._run(tenant)))
        await self.settle()

    async def _run(self, tenant: str) -> None:
        async with self.places.place(tenant):
            self.begun.append(tenant)
            end = asyncio.Event()
            self._ends.append(end)
            await end.wait()

    async def end_first(self) -> None:
        self._ends.pop(0).set()
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_tenant_with_slow_files_leaves_places_to_others() -> None:
    """Sixteen slow URLs of one stopped the images of all others."""
    fetches = Fetches(16)
    await fetches.begin(*["slow"] * 40)
    assert fetches.begun == ["slow"] * 8
    await fetches.begin("a", "b")
    assert fetches.begun[8:] == ["a", "b"]
    for task in fetches.tasks:
        task.cancel()


async def test_clients_of_this_host_may_have_all_places() -> None:
    fetches = Fetches(16)
    await fetches.begin(*["127.0.0.1"] * 17)
    assert len(fetches.begun) == 16
    for task in fetches.tasks:
        task.cancel()


async def test_tenants_take_turns() -> None:
    fetches = Fetches(2)
    await fetches.begin(*["a"] * 4, "b", "b", "c")
    assert fetches.begun == ["a"]
    for _ in range(6):
        await fetches.end_first()
    assert fetches.begun == ["a", "a", "b", "c", "a", "b", "a"]


async def test_who_gives_up_while_waiting_leaves_nothing() -> None:
    fetches = Fetches(2)
    await fetches.begin("a", "a", "a")
    for task in fetches.tasks:
        task.cancel()
    await fetches.settle()
    assert fetches.begun == ["a"] and not fetches.places._waiting
    async with asyncio.timeout(10), AsyncExitStack() as stack:
        await stack.enter_async_context(fetches.places.place("b"))


async def test_who_gives_up_as_its_turn_comes_gives_the_place_back() -> None:
    fetches = Fetches(2)
    async with fetches.places.place("a"):
        await fetches.begin("a")
    assert not fetches.places._waiting, "it has been given the place"
    fetches.tasks[0].cancel()
    await fetches.settle()
    assert fetches.begun == [] and not fetches.places._budget.n_bytes


async def test_files_are_read_by_threads_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a dead network file system kept the threads that parse bodies and write answers."""
    begun, release, names = threading.Semaphore(0), threading.Event(), list[str]()

    def stuck(*_: object) -> bytes:
        names.append(threading.current_thread().name)
        begun.release()
        release.wait(30)
        return b"x"

    monkeypatch.setattr(loader, "read_file", stuck)
    one = MediaLoader(GatewayConfig(media_path=str(tmp_path)))
    held = BodyReservation(BodyBudget(1 << 20))
    links = [
        MediaLink(place=i, url=f"file://{i}", kind="image", param="messages") for i in range(40)
    ]
    loading = asyncio.create_task(one.load(links, (b"",) * 40, held))
    try:
        for _ in range(4):
            assert await asyncio.to_thread(begun.acquire, timeout=10)
        assert all(name.startswith("read-media") for name in names)
        assert len(names) == 4
    finally:
        release.set()
    assert await loading == (b"x",) * 40
