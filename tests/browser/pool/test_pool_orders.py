"""What an admin does to the pool in a browser: load, unload, drain, roll out; mouse or keyboard."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from protocol.process.control import AbortOrder, FleetReport, RolloutReport, RolloutState
from tests.browser.held import hold
from tests.browser.pictures import take
from tests.browser.pool.pool_page import leaving, tab_to, use_key
from tests.browser.watched import Watched
from tests.e2e.conftest import toml
from tests.e2e.served import Served, serving
from tests.fakes.echo import FakeOptions
from tests.gateway.fleet.test_admin_api import REPORT, administered
from tests.gateway.models.test_http_models import routing

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def _expected(watched: Watched) -> None:
    watched.allowed += ["status of 400", "status of 401", "status of 403"]


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A served pool of two workers with a key for an admin."""
    folder: Path = tmp_path_factory.mktemp("two-workers")
    gateway = toml({"port": 0, "heartbeat_s": 0.2}) + "api_key_admin = ['boss']\n"
    worker = toml({"backend": "fake", "n_slots": 4, "count": 2})
    rollout = toml({"probation_s": 1.0})
    text = f"[gateway]\n{gateway}[rollout]\n{rollout}[[worker]]\n{worker}"
    (folder / "pool.toml").write_text(text)
    with serving("--config", str(folder / "pool.toml")) as served:
        yield served


async def test_a_model_is_loaded_and_unloaded(page: Page, tmp_path: Path, port: int) -> None:
    async with routing(tmp_path, "chat", "code", port=port) as (gateway, supervisor), leaving(page):
        supervisor.held["chat"] = asyncio.Event()
        await page.goto(f"{gateway.url}/pool")
        models = page.get_by_role("region", name="Models").locator("li")
        chat = models.filter(has_text="chat")
        await expect(models).to_have_count(2)
        await expect(chat).to_contain_text("unloaded")
        await page.get_by_role("button", name="Load chat").click()
        dialog = page.get_by_role("dialog", name="Load chat?")
        await dialog.get_by_role("button", name="Cancel").click()
        assert supervisor.orders == []
        await page.get_by_role("button", name="Load chat").click()
        await dialog.get_by_role("button", name="Load", exact=True).click()
        await expect(dialog).to_have_count(0)
        await expect(chat).to_contain_text("loading")
        await take(page, "pool-loading")
        supervisor.held["chat"].set()
        await expect(page.locator(".worker")).to_have_count(1)
        await page.get_by_role("button", name="Unload chat").click()
        dialog = page.get_by_role("dialog", name="Unload chat?")
        await dialog.get_by_role("button", name="Unload", exact=True).click()
        await expect(page.locator(".worker")).to_have_count(0)
        await expect(page.get_by_role("button", name="Load chat")).to_be_visible()
        assert supervisor.orders == ["load chat", "unload chat"]


async def test_a_model_that_cannot_be_loaded_says_why(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with routing(tmp_path, "chat", port=port) as (gateway, supervisor), leaving(page):
        supervisor.failing.add("chat")
        await page.goto(f"{gateway.url}/pool")
        await page.get_by_role("button", name="Load chat").click()
        await page.get_by_role("dialog").get_by_role("button", name="Load", exact=True).click()
        models = page.get_by_role("region", name="Models")
        await expect(models).to_contain_text("it is broken")


async def test_a_rolling_change_is_seen_from_its_beginning_to_its_end(
    page: Page, two_workers: Served
) -> None:
    await page.goto(f"{two_workers.url}/pool")
    await use_key(page, "boss")
    workers = page.locator(".worker")
    await expect(workers).to_have_count(2)
    await page.get_by_role("button", name="Replace workers …").click()
    await page.get_by_role("dialog").get_by_role("button", name="Replace them").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    change = page.get_by_role("region", name="Rolling change")
    await expect(change).to_contain_text("Rolling change running: 0 of 2 workers")
    await expect(change.get_by_role("button", name="Go back …")).to_be_visible()
    await take(page, "pool-rollout")
    await expect(change).to_contain_text("Rolling change running: 1 of 2 workers", timeout=30_000)
    await expect(change).to_have_count(0, timeout=30_000)
    log = page.get_by_role("log")
    await expect(log).to_contain_text("rolling change: done")
    await expect(workers).to_have_count(2)
    await expect(workers.locator(".state")).to_have_text(["ready", "ready"])


async def test_a_rolling_change_is_taken_back_and_its_failure_is_told(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with administered(tmp_path, port=port) as (gateway, supervisor), leaving(page):
        await page.goto(f"{gateway.url}/pool")
        await use_key(page, "boss")
        fields = {"number": 1, "n_done": 1, "n_total": 3, "worker": "h/w0"}
        running = RolloutReport(state=RolloutState.RUNNING, step="warm-up", **fields)  # type: ignore[arg-type]  # the names are those of its fields
        supervisor.send(FleetReport(processes=REPORT.processes, rollout=running))
        change = page.get_by_role("region", name="Rolling change")
        await expect(change).to_contain_text("1 of 3 workers, h/w0: warm-up")
        await change.get_by_role("button", name="Go back …").click()
        await page.get_by_role("dialog").get_by_role("button", name="Go back").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert isinstance(supervisor.lines[-1], AbortOrder)
        going = RolloutReport(state=RolloutState.GOING_BACK, **fields)  # type: ignore[arg-type]
        supervisor.send(FleetReport(processes=REPORT.processes, rollout=going))
        await expect(change).to_contain_text("Rolling change going back")
        await expect(change.get_by_role("button")).to_have_count(0)
        failed = RolloutReport(state=RolloutState.FAILED, why="the answer was wrong", **fields)  # type: ignore[arg-type]
        supervisor.send(FleetReport(processes=REPORT.processes, rollout=failed))
        await expect(change).to_have_count(0)
        await expect(page.get_by_role("log")).to_contain_text("the answer was wrong")


async def test_everything_is_done_with_the_keyboard_alone(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with administered(tmp_path, port=port) as (gateway, supervisor), leaving(page):
        await gateway.add_worker(FakeOptions(name="h/w9"))
        await page.goto(f"{gateway.url}/pool")
        await expect(page.get_by_role("textbox", name="API key")).to_be_focused()
        await page.keyboard.type("boss")
        await page.keyboard.press("Enter")
        await expect(page.locator(".worker")).to_have_count(3)
        await expect(page.get_by_role("button", name="Replace workers …")).to_be_visible()
        reached = await tab_to(page, "w9")
        assert "Replace workers …" in reached and "w0" in reached
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog", name="h/w9")).to_be_visible()
        await tab_to(page, "Drain …", 5)
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Drain h/w9?")
        await expect(dialog).to_be_visible()
        for _ in range(8):  # the focus stays inside
            await page.keyboard.press("Tab")
            inside = "document.activeElement === document.body || !!document.activeElement.closest"
            assert await page.evaluate(f"({inside}('dialog'))")
        await dialog.get_by_role("checkbox").focus()
        await page.keyboard.press("Space")
        await expect(dialog.get_by_role("checkbox")).to_be_checked()
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog")).to_have_count(0)  # gone, not only closed
        await expect(page.get_by_role("button", name="w9", exact=True)).to_be_focused()
        n_lines = len(supervisor.lines)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog", name="h/w9")).to_be_visible()
        await tab_to(page, "Drain …", 5)
        await page.keyboard.press("Enter")
        await expect(dialog).to_be_visible()
        await tab_to(page, "Drain", 5)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert len(supervisor.lines) == n_lines + 1
        await page.get_by_role("log").focus()  # what scrolls is reached too
        await expect(page.get_by_role("log")).to_be_focused()


async def test_an_order_that_is_answered_late_closes_no_other_dialog(
    page: Page, tmp_path: Path, port: int
) -> None:
    async with administered(tmp_path, port=port) as (gateway, _), leaving(page):
        await page.goto(f"{gateway.url}/pool")
        await use_key(page, "boss")
        held = await hold(page, "*/admin/drain")
        await page.get_by_role("button", name="w0", exact=True).click()
        await page.get_by_role("button", name="Drain …").click()
        await page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
        coming = await held.next()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        await page.get_by_role("button", name="Replace workers …").click()
        dialog = page.get_by_role("dialog", name="Replace the workers?")
        await expect(dialog).to_be_visible()
        async with page.expect_response("**/admin/drain"):
            await coming.fulfill({})
        await page.evaluate("new Promise(requestAnimationFrame)")
        await expect(dialog).to_be_visible()
