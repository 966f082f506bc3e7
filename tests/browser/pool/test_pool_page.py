"""The view of the pool in a browser: live cells, deaths, orders, keys, phones, many workers."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, expect

from protocol.process.control import Reply, WorkerOrder
from protocol.wire.messages import Delta, Envelope, Generate, PromptRead, Started
from tests.browser.axe import violations
from tests.browser.pictures import SCHEMES, take
from tests.browser.pool.pool_page import cells as cells_of
from tests.browser.pool.pool_page import fill_of, leaving, use_key
from tests.browser.tab import Tab
from tests.browser.watched import Watched
from tests.e2e.served import Served
from tests.fakes.echo import FakeOptions
from tests.gateway.feed.reader import keys_of
from tests.gateway.fleet.test_admin_api import administered
from tests.gateway.inprocess import Running, running, until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

STILL = FakeOptions(free_running=False, n_slots=4, n_ctx=150)
CHAT = {"messages": [{"role": "user", "content": "word " * 50}], "stream": True}
_WATCH_FRAMES = """() => new Promise((resolve) => {
  const frames_ms = { n: 0, longest: 0 };
  let before = performance.now();
  const next = (now) => {
    frames_ms.n += 1;
    frames_ms.longest = Math.max(frames_ms.longest, now - before);
    before = now;
    if (frames_ms.n < 60) requestAnimationFrame(next);
    else resolve(frames_ms);
  };
  requestAnimationFrame(next);
})"""

_SET_VISIBILITY = """(value) => {
  Object.defineProperty(document, 'visibilityState', { value, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}"""


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def _expected(watched: Watched) -> None:
    """Browsers write refused requests to the console; those of these tests are wanted."""
    watched.allowed += ["status of 400", "status of 401", "status of 403"]


@asynccontextmanager
async def asking(gateway: Running, n: int, key: str = "") -> AsyncIterator[None]:
    """Ask n chats, and leave them in the end."""
    headers = {"X-Api-Key": key}
    tasks = [
        asyncio.create_task(gateway.post("/v1/chat/completions", CHAT, headers=headers))
        for _ in range(n)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_cells_and_figures_are_live_while_chats_run(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(page):
        names = ("gpu-1/chat-1", "gpu-1/chat-2", "gpu-2/chat-1")
        workers = [await gateway.add_worker(replace(STILL, name=name)) for name in names]
        await page.goto(f"{gateway.url}/pool")
        cells = page.locator(".worker .cells i")
        await expect(cells).to_have_count(12)
        await expect(page.locator(".worker .cells i:not([class=''])")).to_have_count(0)
        async with asking(gateway, 20):
            await expect(page.get_by_text("without a key")).to_be_visible()
            for i, worker in enumerate(workers):
                await worker.got(Generate, 4)
                await worker.step(4 + 9 * i)
            await expect(page.locator(".worker .cells i.w")).to_have_count(12)
            figure = page.locator(".figure", has_text="Slots busy")
            await expect(figure).to_contain_text("12 of 12")
            await expect(page.locator(".badge")).to_have_text("all slots busy")
            assert await fill_of(cells.first) > 0
            await take(page, "pool")
            await page.get_by_role("button", name="chat-2").click()
            await expect(page.get_by_role("dialog")).to_contain_text("writes an answer")
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(page.locator(".worker .cells i.w")).to_have_count(0)


async def test_a_cell_grows_while_its_prompt_is_read(page: Page, tmp_path: Path, port: int) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(page):
        worker = await gateway.add_worker(replace(STILL, n_ctx=1000))
        await page.goto(f"{gateway.url}/pool")
        async with asking(gateway, 1):
            await worker.got(Generate)
            key = worker.envelopes[-1].task
            await worker.send(Envelope(key, Started(slot=2, n_prompt=800, n_cached=100)))
            reads = cells_of(page, "r")
            await expect(reads).to_have_attribute("style", re.compile(r"--fill: 0\.1;"))
            await worker.send(Envelope(key, PromptRead(n_read=300)))
            await expect(reads).to_have_attribute("style", re.compile(r"--fill: 0\.4;"))
            assert await fill_of(reads) == 0.4
            await page.get_by_role("button", name="w0", exact=True).click()
            row = page.get_by_role("dialog").locator("tbody tr").nth(2)
            await expect(row).to_contain_text("reads a prompt")
            await expect(row).to_contain_text("400 of 1,000")
            await page.keyboard.press("Escape")
            await take(page, "pool-reading")
            await worker.send(Envelope(key, Delta(text="x", tokens=(1,), n_predicted=1)))
            await expect(cells_of(page, "w")).to_have_attribute("style", re.compile(r"0\.8;"))


async def test_two_tabs_and_a_network_that_goes_and_comes(
    page: Page, context: BrowserContext, watched: Watched, tmp_path: Path, port: int
) -> None:
    watched.allowed += ["ERR_INTERNET_DISCONNECTED", "ERR_NETWORK_CHANGED"]
    async with running(tmp_path, port=port) as gateway, leaving(page):
        await gateway.add_worker()
        other = await context.new_page()
        for tab in (page, other):
            await tab.goto(f"{gateway.url}/pool")
            await expect(tab.locator(".worker")).to_have_count(1)
        await gateway.add_worker(FakeOptions(name="w1"))
        for tab in (page, other):
            await expect(tab.locator(".worker")).to_have_count(2)
        await context.set_offline(True)
        await page.evaluate(_SET_VISIBILITY, "hidden")
        await page.evaluate(_SET_VISIBILITY, "visible")  # it connects anew, and cannot
        await expect(page.locator(".badge")).to_have_text("not connected")
        await expect(page.get_by_role("status")).to_contain_text("The server cannot be reached.")
        await expect(page.locator(".worker")).to_have_count(2)  # as it was
        await take(page, "pool-offline")
        await context.set_offline(False)
        await expect(page.locator(".badge")).to_have_text("ok")
        await expect(page.get_by_role("status")).to_have_count(0)


async def test_the_last_requests_say_why_they_went_where_they_went(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(page):
        await gateway.add_worker(FakeOptions(name="h/w0"))
        await page.goto(f"{gateway.url}/pool")
        await expect(page.locator(".requests")).to_contain_text("No request has ended yet")
        await gateway.post("/v1/chat/completions", {**CHAT, "max_tokens": 3})
        row = page.locator(".requests tbody tr").first
        await expect(row).to_contain_text("the fastest by load")
        await expect(row).to_contain_text("h/w0")
        await take(page, "pool-requests")


async def test_a_worker_that_dies_and_comes_back_is_told(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(page):
        worker = await gateway.add_worker()
        await page.goto(f"{gateway.url}/pool")
        await expect(page.locator(".worker")).to_have_count(1)
        await worker.die()
        await expect(page.locator(".worker")).to_have_count(0)
        log = page.get_by_role("log")
        await expect(log).to_contain_text("w0 is lost")
        await expect(log).to_have_attribute("aria-live", "polite")
        await gateway.add_worker()
        await expect(page.locator(".worker")).to_have_count(1)
        await expect(log.locator("li").first).to_contain_text("w0 is ready")


async def test_a_drain_is_confirmed_and_its_refusal_is_shown(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with administered(tmp_path, port=port) as (gateway, supervisor), leaving(page):
        await page.goto(f"{gateway.url}/pool")
        await use_key(page, "boss")
        await page.get_by_role("button", name="w0", exact=True).click()
        await page.get_by_role("button", name="Drain …").click()
        dialog = page.get_by_role("dialog", name="Drain h/w0?")
        n_lines = len(supervisor.lines)
        supervisor.reply = Reply(id=0, error="it is the only worker of its model")
        watched_error = dialog.get_by_role("alert")
        await dialog.get_by_role("button", name="Drain", exact=True).click()
        await expect(watched_error).to_contain_text("it is the only worker of its model")
        await take(page, "pool-drain-refused")
        supervisor.reply = Reply(id=0)
        await dialog.get_by_role("checkbox").check()
        await dialog.get_by_role("button", name="Drain", exact=True).click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        orders = [one for one in supervisor.lines[n_lines:] if isinstance(one, WorkerOrder)]
        assert [(one.worker, one.force) for one in orders] == [("h/w0", False), ("h/w0", True)]


async def test_without_keys_nobody_may_drain_and_the_page_says_why(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(page):
        await gateway.add_worker()
        await page.goto(f"{gateway.url}/pool")
        await page.get_by_role("button", name="w0", exact=True).click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("This server has no keys")
        await expect(dialog.get_by_role("button", name="Drain …")).to_have_count(0)


async def test_a_key_is_asked_for_and_one_that_may_not_look_is_told(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with running(tmp_path, port=port, **keys_of(tmp_path)) as gateway, leaving(page):
        await gateway.add_worker()
        await page.goto(f"{gateway.url}/pool")
        await use_key(page, "user")
        await expect(page.locator(".pool [role=alert]")).to_contain_text("key")
        await page.locator(".pool").get_by_role("button", name="API key …").click()
        await use_key(page, "boss")
        await expect(page.locator(".worker")).to_have_count(1)


async def test_a_reload_of_the_gateway_loses_nothing_that_was_seen(
    page: Page, fake_pool: Served
) -> None:
    await page.goto(f"{fake_pool.url}/pool")
    events = page.get_by_role("log").locator("li")
    await expect(events.first).to_contain_text("is ready")
    n_before = await events.count()
    fake_pool.signal(signal.SIGHUP)
    await expect(events).to_have_count(n_before + 1)  # the worker is ready at the new gateway
    await expect(page.locator(".badge")).to_have_text("ok")
    await expect(page.locator(".worker")).to_have_count(1)


async def test_nothing_is_received_while_the_page_is_hidden_or_shows_the_chat(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with running(tmp_path, port=port) as gateway, leaving(page):
        await gateway.add_worker()
        await page.goto(f"{gateway.url}/pool")
        await until(lambda: gateway.feed.n_readers == 1)
        await page.evaluate(_SET_VISIBILITY, "hidden")
        await until(lambda: gateway.feed.n_readers == 0)
        await page.evaluate(_SET_VISIBILITY, "visible")
        await until(lambda: gateway.feed.n_readers == 1)
        await page.get_by_role("link", name="Chat").click()
        await until(lambda: gateway.feed.n_readers == 0)


async def test_axe_finds_nothing_and_a_phone_scrolls_in_one_direction(
    tab: Tab, tmp_path: Path, port: int
) -> None:
    page = tab.page
    async with administered(tmp_path, port=port) as (gateway, _), leaving(page):
        worker = await gateway.add_worker(FakeOptions(name="h/w2", n_slots=6, free_running=False))
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.goto(f"{gateway.url}/pool")
        await use_key(page, "boss")
        async with asking(gateway, 4, "boss"):
            await expect(page.locator(".worker")).to_have_count(3)
            await worker.step(2)
            await expect(page.locator(".plot canvas")).to_have_count(4)
            assert await violations(page) == []
            wide = "element => element.scrollWidth - element.clientWidth"
            assert await page.locator(".pool").evaluate(wide) == 0
            for scheme in SCHEMES:
                await page.emulate_media(color_scheme=scheme)
                await take(page, f"pool-phone-{scheme}")
            await page.get_by_role("button", name="w2", exact=True).click()
            assert await violations(page) == []


async def test_two_hundred_and_fifty_six_workers_are_shown_smoothly(
    page: Page, tmp_path: Path, port: int
) -> None:
    n_workers, n_slots = 256, 8
    async with running(tmp_path, port=port, heartbeat_s=5.0) as gateway, leaving(page):
        for i in range(n_workers):
            name = f"host-{i // 64}/w{i % 64}"
            await gateway.add_worker(FakeOptions(name=name, n_slots=n_slots, step_s=0.5))
        await page.goto(f"{gateway.url}/pool")
        await expect(page.locator(".worker")).to_have_count(n_workers)
        await expect(page.locator(".worker .cells i")).to_have_count(n_workers * n_slots)
        async with asking(gateway, 64):
            await expect(page.locator(".cells i.w").first).to_be_visible()
            longest = await page.evaluate(_WATCH_FRAMES)
        await take(page, "pool-256-workers")
        print(f"256 workers: frames {longest}")  # noqa: T201 - measured, not judged: machines differ
