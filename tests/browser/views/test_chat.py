"""Talking to the real model: send, stream, stop, edit, branches, reload, tabs, offline."""

import os
import re
import signal

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.chat import (
    answered,
    answers,
    grown,
    message_field,
    questions,
    say,
    written,
)
from tests.browser.pictures import take
from tests.browser.pool.pool_page import cells, fill_of
from tests.browser.watched import Watched
from tests.e2e.served import Served

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="session"),
]

COUNT_PAINTS = """
() => {
  window.paints = [];
  const watch = () => {
    const body = document.querySelector('article.assistant .markdown');
    if (!body) return setTimeout(watch, 5);
    new MutationObserver(() => window.paints.push(performance.now()))
      .observe(body, { childList: true, subtree: true, characterData: true });
  };
  watch();
}
"""


async def settings(page: Page, **fields: str) -> None:
    """Change sampling settings of the open chat."""
    await page.get_by_role("button", name="Settings of this chat").click()
    for label, value in fields.items():
        await page.get_by_label(label.replace("_", " "), exact=True).fill(value)
    await page.get_by_role("button", name="Save", exact=True).click()


async def endless(page: Page) -> None:
    """Let answers go on until they are stopped."""
    await page.get_by_role("button", name="Settings of this chat").click()
    await page.get_by_text("Form of the answer, tools").click()
    await page.get_by_label("Other fields").fill('{"ignore_eos": true, "temperature": 0}')
    await page.get_by_role("button", name="Save", exact=True).click()


async def test_an_answer_streams_and_tells_how_it_came_about(page: Page, pool: Served) -> None:
    await page.goto(pool.url)
    await expect(message_field(page)).to_be_focused()
    await settings(page, Longest_answer="96", Temperature="0", Seed="7")  # not one paint for all
    await page.evaluate(COUNT_PAINTS)
    await say(page, "Tell me of the sea.")
    last = await answered(page)
    assert len(await last.locator(".markdown").inner_text()) > 20
    figures = await last.locator(".figures").inner_text()
    for word in ("tokens/s", "96 tokens", "first after", "cached", "SmolLM2"):
        assert word in figures
    paints: list[float] = await page.evaluate("window.paints")
    seconds = (paints[-1] - paints[0]) / 1000
    assert 2 < len(paints) <= 20 * seconds + 3  # one at the start, and two when it ends
    await expect(page.locator(".chats a")).to_have_text(["Tell me of the sea."])


async def test_an_answer_is_stopped_and_goes_on(page: Page, pool: Served) -> None:
    await page.goto(pool.url)
    await endless(page)
    await say(page, "Count.")
    await grown(written(page))
    await page.keyboard.press("Escape")
    await expect(page.locator("article .note")).to_have_text("Stopped.")
    before = await answers(page).locator(".markdown").inner_text()
    await page.get_by_role("button", name="Continue").click()
    await grown(written(page), len(before) + 20)
    await page.get_by_role("button", name="Stop").click()
    after = await answers(page).locator(".markdown").inner_text()
    assert after.startswith(before[: len(before) // 2])


async def test_escape_stops_an_answer_wherever_the_focus_is(page: Page, pool: Served) -> None:
    await page.goto(pool.url)
    await endless(page)
    await say(page, "Count.")
    await grown(written(page))
    await page.get_by_role("button", name="Settings of this chat").click()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await questions(page).get_by_role("button", name="Edit").focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Text of the message")).to_have_count(0)
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await page.locator("main").click(position={"x": 5, "y": 300})
    await page.keyboard.press("Escape")
    await expect(page.locator("article .note")).to_have_text("Stopped.")


async def test_versions_stand_beside_one_another(page: Page, pool: Served) -> None:
    await page.goto(pool.url)
    await settings(page, Longest_answer="6")
    await say(page, "One.")
    await answered(page)
    await page.get_by_role("button", name="Regenerate").click()
    await expect(page.get_by_role("img", name="Version 2 of 2")).to_be_visible()
    await answered(page)
    await questions(page).hover()
    await questions(page).get_by_role("button", name="Edit").click()
    await page.get_by_label("Text of the message").fill("Two.")
    await page.get_by_role("button", name="Send as a new version").click()
    await expect(questions(page).locator(".plain")).to_have_text("Two.")
    await answered(page)
    await questions(page).hover()
    await questions(page).get_by_role("button", name="Version before").click()
    await expect(questions(page).locator(".plain")).to_have_text("One.")
    await expect(page.get_by_role("img", name="Version 2 of 2").last).to_be_visible()
    await page.reload()
    await expect(questions(page).locator(".plain")).to_have_text("One.")


async def test_a_reload_keeps_what_was_written_and_two_tabs_agree(
    page: Page, context: BrowserContext, pool: Served
) -> None:
    await page.goto(pool.url)
    await endless(page)
    await say(page, "Tell me a long story.")
    await grown(written(page))
    other = await context.new_page()
    await other.goto(page.url)
    await expect(other.locator(".note")).to_have_text("Being written in another tab.")
    await page.bring_to_front()
    await page.reload()
    await expect(page.locator(".note")).to_have_text("The answer broke off.")
    kept = await grown(written(page))
    await page.get_by_role("button", name="Continue").click()
    await grown(written(page), len(kept) + 10)
    await page.get_by_role("button", name="Stop").click()
    await expect(other.locator(".note")).to_have_text("Stopped.")


async def test_without_a_connection_nothing_is_lost(
    page: Page, context: BrowserContext, pool: Served, watched: Watched
) -> None:
    watched.allowed.append("ERR_INTERNET_DISCONNECTED")
    await page.goto(pool.url)
    await settings(page, Longest_answer="6")
    await context.set_offline(True)
    await say(page, "Are you there?")
    await expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    await context.set_offline(False)
    await page.get_by_role("button", name="Try again").click()
    await answered(page)
    await expect(questions(page)).to_have_count(1)
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_the_pool_shows_the_chat_beside_it(
    page: Page, context: BrowserContext, pool: Served
) -> None:
    beside = await context.new_page()
    await beside.goto(f"{pool.url}/pool")
    await expect(beside.locator(".worker")).to_have_count(2)
    await page.goto(pool.url)
    await page.bring_to_front()  # a tab behind another is painted once a second
    await endless(page)
    await say(page, "Repeat this. " + "The sea is wide and blue. " * 30)
    await grown(written(page))
    await expect(cells(beside, "w")).to_have_count(1)
    assert 0 < await fill_of(cells(beside, "w")) <= 1
    figures = beside.locator(".figure")
    await expect(figures.filter(has_text="Slots busy")).to_contain_text("1 of 8")
    await expect(figures.filter(has_text="Tokens a second").locator("dd")).to_have_text(
        re.compile(r"^[1-9]")
    )
    await take(beside, "pool-beside-a-chat")
    await page.get_by_role("button", name="Stop").click()
    name = await answers(page).locator(".figures [title^=Worker]").inner_text()
    await expect(cells(beside, "w")).to_have_count(0)
    await expect(beside.locator(".requests tbody tr").first).to_contain_text(name)
    await take(page, "chat-with-a-model")


async def test_the_text_goes_on_when_its_worker_is_killed(page: Page, pool: Served) -> None:
    await page.goto(pool.url)
    await endless(page)
    async with page.expect_response("**/v1/chat/completions") as coming:
        await say(page, "Tell me of the mountains.")
    name = (await (await coming.value).all_headers())["x-llamapool-worker"]
    await grown(written(page))
    await page.get_by_role("link", name="Pool").click()
    os.kill(pool.pid_of(name.partition("/")[2]), signal.SIGKILL)
    pool.wait_for(r"process (exited|died|ended)|respawn|restart")
    await page.get_by_role("link", name="Chat").click()
    n = len(await answers(page).locator(".markdown").inner_text())
    await grown(written(page), n + 40)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("article .note")).to_have_text("Stopped.")
    worker = page.locator(".figures [title^=Worker]")
    await expect(worker).to_be_visible()
    assert await worker.inner_text() != name, "it goes on at the other one"
