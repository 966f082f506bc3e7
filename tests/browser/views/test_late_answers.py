"""What comes late, when something else is wanted: it must neither be shown nor undo anything."""

import json
import re
from typing import Any

import pytest
from playwright.async_api import FilePayload, Page, expect

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
from tests.browser.held import SLOW_READS, SLOW_WRITES, happens, hold
from tests.browser.intercept import intercept
from tests.browser.tab import Tab
from tests.browser.watched import Watched
from tests.e2e.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TWO_MODELS = {"data": [{"id": "left"}, {"id": "right"}]}

READ_MESSAGES = """async () => {
  const [{ name }] = await indexedDB.databases();
  const request = indexedDB.open(name);
  await new Promise((done) => (request.onsuccess = done));
  const store = request.result.transaction('messages').objectStore('messages').getAll();
  await new Promise((done) => (store.onsuccess = done));
  request.result.close();
  return store.result.map(({ content }) => content);
}"""
"""Returns what is on disk."""


def props(temperature: float, *, vision: bool = False) -> dict[str, Any]:
    return {
        "default_generation_settings": {"params": {"temperature": temperature}},
        "modalities": {"vision": vision, "audio": False},
    }


async def use_key(page: Page, key: str) -> None:
    await page.get_by_role("textbox", name="API key").fill(key)
    await page.get_by_role("button", name="Use this key").click()


async def two_chats(page: Page, url: str) -> tuple[str, str]:
    """Make the chats `One` and `Two`, the second of which is open; returns their ids."""
    await answer_with(page, stream({"content": "First."}), stream({"content": "Second."}))
    await page.goto(url)
    found = []
    for i, title in enumerate(("One", "Two")):
        if i:
            await page.get_by_role("link", name="New chat").click()
            await expect(answers(page)).to_have_count(0)
        await say(page, title)
        await answered(page)
        await expect(page.locator(".chats a")).to_have_count(i + 1)
        found.append(page.url.partition("#")[2])
    return found[0], found[1]


async def hold_reading(page: Page, chat: str) -> None:
    await page.evaluate("(id) => { window.heldChat = id }", chat)


async def let_go(page: Page) -> None:
    """Let what was held be read, once it is."""
    await happens(page, "window.reads.length > 0")
    await page.evaluate("window.heldChat = null; window.reads.splice(0).forEach((go) => go())")


async def test_the_chat_that_was_asked_for_last_is_shown(
    page: Page, tab: Tab, fake_pool: Served
) -> None:
    await tab.run_first(f"({SLOW_READS})()")
    one, _ = await two_chats(page, fake_pool.url)
    await hold_reading(page, one)
    await page.locator(".chats a", has_text="One").click()
    await happens(page, "window.reads.length > 0")
    await page.locator(".chats a", has_text="Two").click()
    await let_go(page)
    await expect(page.locator(".chats a[aria-current]")).to_have_text("Two")
    await expect(answers(page).locator(".markdown")).to_have_text("Second.")
    await hold_reading(page, one)
    await page.locator(".chats a", has_text="One").click()
    await happens(page, "window.reads.length > 0")
    await page.get_by_role("link", name="New chat").click()
    await let_go(page)
    await expect(answers(page)).to_have_count(0)
    await expect(page.get_by_text("What is on your mind?")).to_be_visible()


async def test_an_answer_that_ends_while_its_chat_is_opened_is_shown_whole(
    page: Page, tab: Tab, fake_pool: Served
) -> None:
    await tab.run_first(f"({SLOW_READS})()")
    one, _ = await two_chats(page, fake_pool.url)
    await page.locator(".chats a", has_text="One").click()
    await expect(answers(page).locator(".markdown")).to_have_text("First.")
    held = await hold(page, ANSWERS)
    await say(page, "More.")
    coming = await held.next()
    await page.locator(".chats a", has_text="Two").click()
    await expect(answers(page).locator(".markdown")).to_have_text("Second.")
    await hold_reading(page, one)
    await page.locator(".chats a", has_text="One").click()
    await happens(page, "window.reads.length > 0")
    await coming.fulfill(stream({"content": "Third."}), content_type="text/event-stream")
    await happens(page, f"await ({READ_MESSAGES})().then((all) => all.includes('Third.'))")
    await let_go(page)
    await expect(answers(page).last.locator(".markdown")).to_have_text("Third.")
    await expect(page.get_by_text("Being written in another tab.")).to_have_count(0)


async def test_a_chat_that_is_deleted_while_its_answer_comes_stays_deleted(
    page: Page, fake_pool: Served
) -> None:
    held = await hold(page, ANSWERS)
    await page.goto(fake_pool.url)
    await say(page, "Gone.")
    await held.next()
    await page.locator(".chats li").hover()
    await page.get_by_role("button", name="Delete Gone.").click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(page.locator(".chats a")).to_have_count(0)
    await say(page, "Another.")
    await (await held.next()).fulfill(stream({"content": "Yes."}), content_type="text/event-stream")
    await answered(page)
    await expect(page.locator(".chats a")).to_have_text(["Another."])
    await page.reload()
    await expect(page.locator(".chats a")).to_have_text(["Another."])


async def test_messages_that_are_deleted_while_an_answer_comes_stay_deleted(
    page: Page, fake_pool: Served
) -> None:
    await two_chats(page, fake_pool.url)
    held = await hold(page, ANSWERS)
    await say(page, "More?")
    await held.next()
    await questions(page).last.hover()
    await questions(page).last.get_by_role("button", name="Delete from here").click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(questions(page)).to_have_count(1)
    await expect(page.get_by_role("button", name="Send")).to_be_visible()  # nothing runs any more
    await page.reload()
    await expect(questions(page).locator(".plain")).to_have_text(["Two"])
    await expect(answers(page)).to_have_count(1)


async def test_a_slow_disk_holds_nothing_up_and_lets_nobody_send_twice(
    page: Page, tab: Tab, fake_pool: Served
) -> None:
    await tab.run_first(f"({SLOW_WRITES})()")
    held = await hold(page, ANSWERS)
    await page.goto(fake_pool.url)
    await expect(page.get_by_text("What is on your mind?")).to_be_visible()
    await say(page, "One.")
    coming = await held.next()
    await say(page, "Two.")  # has to wait for the answer
    await coming.fulfill(stream({"content": "Yes."}), content_type="text/event-stream")
    await answered(page)
    await expect(questions(page).locator(".plain")).to_have_text(["One."])
    await expect(message_field(page)).to_have_value("Two.")
    assert held.n_asked == 1


async def test_properties_of_a_model_that_is_not_chosen_any_more_are_dropped(
    page: Page, fake_pool: Served
) -> None:
    await intercept(page, "*/v1/models", lambda one: one.fulfill(TWO_MODELS))
    held = await hold(page, "*/props?*")
    await page.goto(fake_pool.url)
    left = await held.next()
    await page.get_by_label("Model", exact=True).select_option("right")
    right = await held.next()
    assert left.url.endswith("left") and right.url.endswith("right")
    await right.fulfill(props(0.5, vision=True))
    await expect(page.get_by_role("button", name="Attach")).to_be_visible()
    await left.abort()
    await page.get_by_role("button", name="Settings of this chat").click()
    placeholder = page.get_by_label("Temperature", exact=True)
    await expect(placeholder).to_have_attribute("placeholder", "0.5")
    await page.keyboard.press("Escape")
    await page.get_by_label("Model", exact=True).select_option("left")
    await held.next()
    await expect(page.get_by_role("button", name="Attach")).to_have_count(0)


async def test_a_refusal_of_the_old_key_does_not_ask_for_the_new_one(
    page: Page, fake_pool: Served, watched: Watched
) -> None:
    watched.allowed.append("401")
    await page.goto(fake_pool.url)
    await expect(page.locator(".model")).to_have_text("fake")
    held = await hold(page, ANSWERS)
    await say(page, "Hello?")
    coming = await held.next()
    await page.get_by_role("button", name="API key").click()
    await use_key(page, "new")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    error = {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
    await coming.fulfill({"error": error}, status=401)
    await expect(page.get_by_role("alert")).to_contain_text("This server wants an API key.")
    await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.own_tab
async def test_a_chat_that_was_left_asks_the_server_for_nothing(
    page: Page, fake_pool: Served, watched: Watched
) -> None:
    watched.allowed.append("status of 503")
    await page.clock.install()
    held = await hold(page, "*/v1/models")
    await page.goto(fake_pool.url)
    first = await held.next()
    error = {"error": {"code": 503, "message": "loading", "type": "unavailable_error"}}
    await first.fulfill(error, status=503)
    await expect(page.locator(".server-trouble")).to_have_text("loading")
    await page.clock.run_for(3_500)
    second = await held.next()
    await page.get_by_role("link", name="Pool").click()
    await expect(page.locator("main.pool")).to_be_attached()
    await second.abort()
    await page.clock.run_for(60_000)
    assert held.n_asked == 2


async def test_a_picture_that_is_still_read_goes_with_its_message(
    page: Page, tab: Tab, fake_pool: Served
) -> None:
    await intercept(page, "*/props?*", lambda one: one.fulfill(props(0.5, vision=True)))
    asked = await answer_with(page, stream({"content": "A dot."}))
    await tab.run_first(
        """
        const real = FileReader.prototype.readAsDataURL;
        FileReader.prototype.readAsDataURL = function (file) {
          window.readNow = () => real.call(this, file);
        };
        """
    )
    await page.goto(fake_pool.url)
    dot = FilePayload(name="dot.gif", mimeType="image/gif", buffer=b"GIF")
    await page.locator(".composer input[type=file]").set_input_files([dot])
    await message_field(page).fill("What is this?")
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()
    await page.keyboard.press("Enter")
    await happens(page, "window.readNow")
    await page.evaluate("window.readNow()")
    await expect(page.get_by_alt_text("dot.gif")).to_be_visible()
    await page.keyboard.press("Enter")
    await answered(page)
    (request,) = asked
    assert [part["type"] for part in request["messages"][0]["content"]] == ["image_url", "text"]


async def open_slowly(page: Page, tab: Tab, url: str) -> None:
    """Open the first of two chats; reading it waits for `let_go`."""
    await tab.run_first(f"({SLOW_READS})()")
    one, _ = await two_chats(page, url)
    await tab.run_first(f"window.heldChat = {json.dumps(one)}")
    await page.goto("about:blank")
    await page.goto(f"{url}/#{one}")
    await happens(page, "window.reads.length > 0")


async def test_what_is_typed_before_the_chats_are_read_stays_in_the_field(
    page: Page, tab: Tab, fake_pool: Served
) -> None:
    await open_slowly(page, tab, fake_pool.url)
    await message_field(page).fill("Early words")
    await let_go(page)
    await expect(answers(page).locator(".markdown")).to_have_text("First.")
    await expect(message_field(page)).to_have_value("Early words")


async def test_what_is_sent_before_the_chats_are_read_stays_open(
    page: Page, tab: Tab, fake_pool: Served
) -> None:
    await open_slowly(page, tab, fake_pool.url)
    await say(page, "Three")
    await answered(page)
    await let_go(page)
    await expect(page.locator(".chats a[aria-current]")).to_have_text("Three")
    await expect(questions(page).locator(".plain")).to_have_text("Three")


async def test_settings_go_to_the_chat_that_they_were_opened_in(
    page: Page, fake_pool: Served
) -> None:
    await two_chats(page, fake_pool.url)
    await page.locator(".chats a", has_text="One").click()
    await expect(answers(page).locator(".markdown")).to_have_text("First.")
    await page.get_by_role("button", name="Settings of this chat").click()
    await page.get_by_label("System prompt").fill("For one.")
    await page.go_back()
    await expect(answers(page).locator(".markdown")).to_have_text("Second.")
    await page.get_by_role("button", name="Save", exact=True).click()
    for title, system in (("Two", ""), ("One", "For one.")):
        await page.locator(".chats a", has_text=title).click()
        await expect(questions(page).locator(".plain")).to_have_text(title)
        await page.get_by_role("button", name="Settings of this chat").click()
        await expect(page.get_by_label("System prompt")).to_have_value(system)
        await page.keyboard.press("Escape")


@pytest.mark.own_tab
async def test_a_button_that_was_pressed_twice_says_again_what_it_does(
    page: Page, fake_pool: Served
) -> None:
    await answer_with(page, stream({"content": "Copy me."}))
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.clock.install()
    await page.goto(fake_pool.url)
    await say(page, "Hello.")
    await page.clock.run_for(1_000)
    last = await answered(page)
    for _ in range(2):
        await last.get_by_role("button", name=re.compile("^Cop")).click()
        await expect(last.get_by_role("button", name="Copied")).to_be_visible()
        await page.clock.run_for(1_000)
    await page.clock.run_for(2_000)
    await expect(last.get_by_role("button", name="Copy", exact=True)).to_be_visible()
    await expect(last.get_by_role("button", name="Copied")).to_have_count(0)
