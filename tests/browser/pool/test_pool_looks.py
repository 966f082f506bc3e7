"""The view of the pool when it is empty, full, wide or ill: nothing sticks out of anything.

Run with `LLAMAPOOL_SCREENSHOTS` set, it takes pictures of these states in both colour schemes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, ViewportSize, expect

from protocol.process.control import FleetReport, ProcessReport, RolloutReport, RolloutState
from protocol.wire.messages import Envelope, Generate, PromptRead, Started
from tests.browser.axe import violations
from tests.browser.pictures import SCHEMES, take
from tests.browser.pool.pool_page import leaving, use_key
from tests.browser.tab import Tab
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.fleet.test_admin_api import administered
from tests.gateway.inprocess import Running, running, until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SIZES = {
    "wide": ViewportSize(width=1280, height=900),
    "phone": ViewportSize(width=390, height=844),
}
LONG_MODEL = "Qwen3-Coder-30B-A3B-Instruct-1M-UD-Q4_K_XL-with-a-name-that-has-no-end"
LONG_NAME = "gpu-node-017.rack-4.datacentre-north.example.org/chat-with-a-very-long-worker-name-0"
_OUTSIDE = """() => [...document.querySelectorAll('.pool *')].filter((one) => {
  if (one.closest('.clip, .wide-table, .events, .read-aloud, .plot > div')) return false;
  const box = one.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map((one) => one.outerHTML.slice(0, 120))"""
"""What reaches beyond the window, and does not lie in something that scrolls or is cut."""


@pytest_asyncio.fixture(loop_scope="session")
async def view(tab: Tab) -> Page:
    """A page as wide as a desk."""
    await tab.page.set_viewport_size(SIZES["wide"])
    return tab.page


async def look(page: Page, name: str) -> None:
    """Look at what is shown, as wide as a desk and as narrow as a phone, in both schemes."""
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        for size, viewport in SIZES.items():
            await page.set_viewport_size(viewport)
            assert await page.evaluate(_OUTSIDE) == [], scheme
            await take(page, f"pool-{name}-{size}{'-dark' if scheme == 'dark' else ''}")
    await page.set_viewport_size(SIZES["wide"])


@asynccontextmanager
async def asking(gateway: Running, n: int, model: str, key: str = "") -> AsyncIterator[None]:
    """Ask n chats of different length, and leave them in the end."""
    tasks = [
        asyncio.create_task(
            gateway.post(
                "/v1/chat/completions",
                {
                    "model": model,
                    "messages": [{"role": "user", "content": "word " * (5 + 17 * i % 90)}],
                    "stream": True,
                },
                headers={"X-Api-Key": key},
            )
        )
        for i in range(n)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def n_tasks(worker: FakeWorker) -> int:
    """Return how many chats a worker has got."""
    return sum(isinstance(one, Generate) for one in worker.received)


async def begin(workers: Sequence[FakeWorker]) -> None:
    """Let some of the workers' slots write, and some read."""
    for i, worker in enumerate(workers):
        if i % 4 != 1:
            await worker.step(3 + i)
            continue
        for slot, envelope in enumerate(worker.envelopes):
            if isinstance(envelope.payload, Generate):
                started = Started(slot=slot % worker.options.n_slots, n_prompt=90)
                read = PromptRead(n_read=20 + 15 * i % 70)
                task = envelope.task
                await worker.send(Envelope(task, started), Envelope(task, read))


async def test_an_empty_pool(view: Page, tmp_path: Path, port: int) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(view):
        await view.goto(f"{gateway.url}/pool")
        await expect(view.get_by_text("No worker is connected.")).to_be_visible()
        await look(view, "empty")
        assert await violations(view) == []


async def test_sixteen_workers_of_four_hosts(view: Page, tmp_path: Path, port: int) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(view):
        workers = [
            await gateway.add_worker(
                FakeOptions(
                    name=f"gpu-{i // 4}/chat-{i % 4}",
                    n_slots=8,
                    n_ctx=150,
                    free_running=False,
                    model="Qwen3-8B-Q4_K_M",
                )
            )
            for i in range(16)
        ]
        await view.goto(f"{gateway.url}/pool")
        await expect(view.locator(".worker")).to_have_count(16)
        async with asking(gateway, 96, "Qwen3-8B-Q4_K_M"):  # the client has 100 connections
            await until(lambda: sum(map(n_tasks, workers)) == 96)
            await begin([one for one in workers if n_tasks(one)])
            await expect(view.locator(".cells i.r").first).to_be_visible()
            await expect(view.locator(".cells i.w").first).to_be_visible()
            await look(view, "sixteen")
            assert await violations(view) == []


async def test_long_names_and_sixty_four_slots(view: Page, tmp_path: Path, port: int) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(view):
        worker = await gateway.add_worker(
            FakeOptions(name=LONG_NAME, model=LONG_MODEL, n_slots=64, n_ctx=150, free_running=False)
        )
        await view.goto(f"{gateway.url}/pool")
        await expect(view.locator(".cells i")).to_have_count(64)
        async with asking(gateway, 80, LONG_MODEL):
            await worker.got(Generate, 64)
            await worker.step(4)
            await expect(view.locator(".cells i.w")).to_have_count(64)
            await look(view, "long-names")
            await view.locator(".worker-name").click()
            await expect(view.get_by_role("dialog")).to_be_visible()
            await look(view, "long-names-dialog")


async def test_workers_that_are_dead_kept_stopped_or_replaced(
    view: Page, tmp_path: Path, port: int
) -> None:
    async with administered(tmp_path, port=port) as (gateway, supervisor), leaving(view):
        await view.goto(f"{gateway.url}/pool")
        await use_key(view, "boss")
        processes = (
            ProcessReport(name="gateway", model="", state="ready", pid=7),
            ProcessReport(name="h/w0", model="fake", state="ready", pid=8, n_restarts=2),
            ProcessReport(
                name="h/w1",
                model="fake",
                state="quarantined",
                retry_s=540,
                n_restarts=5,
                why="it was killed by signal 11 (SIGSEGV) five times within five minutes",
            ),
            ProcessReport(name="h/w2", model="fake", state="starting", progress=0.4),
            ProcessReport(name="h/w3", model="fake", state="drained"),
            ProcessReport(
                name="h/w4", model="fake", state="given up", why="exit code 78: no such file"
            ),
        )
        change = RolloutReport(
            state=RolloutState.RUNNING, n_done=1, n_total=5, worker="h/w2", step="loads its model"
        )
        supervisor.send(FleetReport(processes=processes, rollout=change))
        await expect(view.locator(".worker")).to_have_count(5)
        lost = await gateway.add_worker(FakeOptions(name="h/w9"))
        await expect(view.locator(".worker")).to_have_count(6)
        await lost.die()
        await expect(view.get_by_role("log")).to_contain_text("w9 is lost")
        await look(view, "ill")
        assert await violations(view) == []
        await view.get_by_role("button", name="w1", exact=True).click()
        await look(view, "ill-dialog")
