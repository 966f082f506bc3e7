"""What stands around the views: policies, the way between them, theme, key."""

import asyncio

import pytest
from playwright.async_api import BrowserContext, Error, Page, Route, expect

from tests.browser.chat import message_field
from tests.browser.tab import leave
from tests.browser.watched import Watched
from tests.e2e.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_going_from_chat_to_pool_and_back_loads_no_page(
    page: Page, fake_pool: Served
) -> None:
    await page.goto(fake_pool.url)
    await page.evaluate("window.isSame = true")
    await page.get_by_role("link", name="Pool").click()
    await expect(page.locator("main.pool")).to_be_attached()
    assert page.url == f"{fake_pool.url}/pool"
    await page.go_back()
    await expect(page.locator(".chat main")).to_be_attached()
    assert await page.evaluate("window.isSame")
    await page.goto(f"{fake_pool.url}/pool")
    await expect(page.locator("main.pool")).to_be_attached()


async def test_a_view_that_arrives_late_does_not_take_the_place_of_the_next(
    page: Page, fake_pool: Served
) -> None:
    late: asyncio.Queue[Route] = asyncio.Queue()
    await page.route("**/chat/view.js*", late.put_nowait)
    await page.goto(fake_pool.url, wait_until="commit")
    await page.get_by_role("link", name="Pool").click()
    await expect(page.locator("main.pool")).to_be_attached()
    chat = await late.get()
    await chat.continue_()
    await page.evaluate("(url) => import(url)", chat.request.url)
    await expect(page.locator("main.pool")).to_be_attached()


FETCHED = """() => performance.getEntriesByType('resource').map((one) => one.name)
  .filter((url) => /\\.m?js$/.test(url) && !url.endsWith('/early.js'))"""
NAMED = "() => [...document.querySelectorAll('link[rel=modulepreload]')].map((one) => one.href)"


@pytest.mark.parametrize("view", ["chat", "pool"])
async def test_the_document_names_all_modules_of_its_view_and_no_other(
    page: Page, fake_pool: Served, view: str
) -> None:
    await page.goto(f"{fake_pool.url}/{'' if view == 'chat' else view}")
    await expect(page.locator(f".{view}")).to_be_attached()
    assert set(await page.evaluate(FETCHED)) == set(await page.evaluate(NAMED))


async def test_a_theme_stays_chosen_in_every_tab(
    page: Page, context: BrowserContext, fake_pool: Served
) -> None:
    await page.goto(fake_pool.url)
    await page.get_by_role("button", name="Theme: as the system").click()
    await page.get_by_role("button", name="Theme: light").click()
    other = await context.new_page()
    await other.goto(fake_pool.url)
    await expect(other.locator("html")).to_have_attribute("data-theme", "dark")
    await other.get_by_role("button", name="Theme: dark").click()
    await expect(page.get_by_role("button", name="Theme: as the system")).to_be_visible()


WITH_THE_CHANGE = """(label) => new Promise((done) => {
  const isOpen = () => document.querySelector('dialog') !== null;
  const before = isOpen();
  new MutationObserver((_, watch) => {
    if (isOpen() === before) return;
    watch.disconnect();
    done(`${document.activeElement.tagName} ${document.activeElement.ariaLabel}`);
  }).observe(document.body, { childList: true, subtree: true });
  [...document.querySelectorAll('button')].find(
    (one) => one.ariaLabel === label || one.textContent.trim() === label).click();
})"""
"""Presses a button; returns what has the focus at the moment when a dialog comes or goes."""


async def test_a_dialog_takes_the_focus_as_it_comes_and_gives_it_back_as_it_goes(
    page: Page, fake_pool: Served
) -> None:
    await page.goto(fake_pool.url)
    await expect(message_field(page)).to_be_focused()  # as the chat opens
    settings, key = page.get_by_role("button", name="Settings"), page.get_by_label("API key")
    await settings.focus()
    shown = await page.evaluate(WITH_THE_CHANGE, "Settings of this chat")
    assert shown == "BUTTON Close"
    gone = await page.evaluate(WITH_THE_CHANGE, "Cancel")
    assert gone == "BUTTON Settings of this chat"
    await key.focus()
    assert await page.evaluate(WITH_THE_CHANGE, "API key") == "INPUT API key"
    assert await page.evaluate(WITH_THE_CHANGE, "Use this key") == "BUTTON API key"


async def test_a_request_to_another_host_would_be_noted(page: Page, watched: Watched) -> None:
    await leave(page)  # a page without a policy, which would stop it first
    with pytest.raises(Error, match="Failed to fetch"):
        await page.evaluate("fetch('https://elsewhere.example/x')")
    watched.allowed.append("ERR_TUNNEL_CONNECTION_FAILED")
    assert watched.faults() == ["request to another host: CONNECT elsewhere.example:443"]
    watched.allowed.append("elsewhere.example")
