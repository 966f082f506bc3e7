"""Two tabs of one browser show the same chats, and a network that goes takes nothing with it."""

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.chat import (
    ANSWERS,
    answer_with,
    answered,
    answers,
    message_field,
    questions,
    say,
    stream,
)
from tests.browser.held import hold
from tests.browser.watched import Watched
from tests.e2e.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_what_one_tab_does_the_other_shows(
    page: Page, context: BrowserContext, fake_pool: Served
) -> None:
    await answer_with(page, stream({"content": "One."}))
    await page.goto(fake_pool.url)
    other = await context.new_page()
    await other.goto(fake_pool.url)
    await expect(message_field(other)).to_be_visible()
    await page.bring_to_front()  # a tab behind another is painted once a second
    await say(page, "First.")
    await answered(page)
    await expect(other.locator(".chats a")).to_have_text(["First."])
    await other.goto(page.url)
    await expect(answers(other).locator(".markdown")).to_have_text("One.")
    await say(page, "Second.")
    await answered(page, 2)
    await expect(questions(other).locator(".plain")).to_have_text(["First.", "Second."])
    await page.locator(".chats li").hover()
    await page.get_by_role("button", name="Delete First.").click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(page.locator(".chats a")).to_have_count(0)
    await expect(other.locator(".chats a")).to_have_count(0)


async def test_an_answer_that_another_tab_receives_is_not_taken_for_a_broken_one(
    page: Page, context: BrowserContext, fake_pool: Served
) -> None:
    held = await hold(page, ANSWERS)
    await page.goto(fake_pool.url)
    await say(page, "Slow?")
    coming = await held.next()
    other = await context.new_page()
    await other.goto(page.url)
    await expect(other.locator(".note")).to_have_text("Being written in another tab.")
    await coming.fulfill(stream({"content": "Yes."}), content_type="text/event-stream")
    await expect(answers(other).locator(".markdown")).to_have_text("Yes.")
    await expect(other.locator(".note")).to_have_count(0)


async def test_a_network_that_goes_and_comes_takes_nothing_with_it(
    page: Page, context: BrowserContext, fake_pool: Served, watched: Watched
) -> None:
    watched.allowed.append("ERR_INTERNET_DISCONNECTED")
    await page.goto(fake_pool.url)
    await expect(page.locator(".model")).to_have_text("fake")
    await context.set_offline(True)
    await say(page, "[[say Still here.]]")
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("The server cannot be reached.")
    await page.get_by_role("link", name="New chat").click()
    await expect(answers(page)).to_have_count(0)
    await page.locator(".chats a").click()
    await expect(alert).to_contain_text("The server cannot be reached.")
    await context.set_offline(False)
    await alert.get_by_role("button", name="Try again").click()
    await answered(page)
    await expect(alert).to_have_count(0)
    await expect(questions(page)).to_have_count(1)
