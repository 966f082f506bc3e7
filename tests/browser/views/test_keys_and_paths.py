"""Keys, `--api-prefix`, a proxy with a path, a phone, chats that leave and come back."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Error, Page, Route, expect

from tests.browser.chat import (
    answer_with,
    answered,
    answers,
    body_of,
    message_field,
    questions,
    say,
    stream,
)
from tests.browser.watched import Strangers, Watched
from tests.e2e.conftest import toml
from tests.e2e.served import Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A pool below a prefix, with a key, and settings for the page."""
    folder: Path = tmp_path_factory.mktemp("locked")
    config = '{"systemMessage": "Be kind.", "temperature": 0.3, "theme": "dark"}'
    gateway = toml({"port": 0, "heartbeat_s": 0.2, "api_prefix": "/llama"})
    gateway += f"api_key = ['secret']\nui_config = '{config}'\n"
    worker = toml({"backend": "fake", "n_slots": 4})
    (folder / "pool.toml").write_text(f"[gateway]\n{gateway}[[worker]]\n{worker}")
    with serving("--config", str(folder / "pool.toml")) as served:
        yield served


async def test_the_key_is_asked_for_kept_and_sent(
    page: Page, locked: Served, watched: Watched
) -> None:
    watched.allowed.append("401")
    await page.goto(f"{locked.url}/")
    dialog = page.get_by_role("dialog", name="API key")
    await expect(dialog).to_contain_text("This server answers only with an API key.")
    await dialog.get_by_role("textbox").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(dialog).to_contain_text("The server does not know this key.")
    await expect(dialog.get_by_role("textbox")).to_be_focused()
    await page.keyboard.type("secret")  # in the place of the one that was wrong
    await dialog.get_by_label("Keep it on this device").check()
    await page.keyboard.press("Enter")
    await expect(dialog).to_have_count(0)
    await expect(page.locator(".model")).to_have_text("fake")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    async with page.expect_request("**/v1/chat/completions") as coming:
        await say(page, "[[say Good day.]]")
    asked = body_of(await coming.value)
    assert asked["temperature"] == 0.3
    assert asked["messages"][0] == {"role": "system", "content": "Be kind."}
    await answered(page)
    assert page.url.startswith(f"{locked.url}/#")
    await page.goto(f"{locked.url}/pool")
    await expect(page.locator("main.pool")).to_be_attached()
    await page.get_by_role("link", name="Chat").click()
    await expect(page.locator(".chats a")).to_have_count(1)


async def test_behind_a_proxy_with_a_path_everything_is_found(
    page: Page, fake_pool: Served
) -> None:
    root = "http://127.0.0.1:9/behind/a/proxy"

    async def forward(route: Route) -> None:
        rest = route.request.url.removeprefix(root)
        assert route.request.url.startswith(f"{root}/"), route.request.url
        with contextlib.suppress(Error):  # the feed of the pool is cut by the end of the test
            await route.fulfill(response=await route.fetch(url=f"{fake_pool.url}{rest}"))

    await page.route("http://127.0.0.1:9/**", forward)
    await page.goto(f"{root}/")
    await say(page, "Hello.")
    await answered(page)
    await page.get_by_role("link", name="Pool").click()
    assert page.url == f"{root}/pool"
    await expect(page.locator("main.pool")).to_be_attached()


async def test_on_a_phone_chats_are_in_a_drawer(
    browser: Browser, strangers: Strangers, fake_pool: Served
) -> None:
    context = await browser.new_context(
        viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True
    )
    watched = Watched(context, strangers)
    page = await context.new_page()
    wide = "x" * 400
    await answer_with(page, stream({"content": f"`{wide}` {wide}\n\n|a|b|\n|-|-|\n|{wide}|1|"}))
    await page.goto(fake_pool.url)
    await say(page, "First.")
    await answered(page)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    assert await page.evaluate("document.querySelector('.scroller').scrollWidth") <= 360
    await expect(page.locator(".sidebar")).to_be_hidden()
    await page.get_by_role("button", name="Chats").tap()
    await page.get_by_role("link", name="New chat").tap()
    await expect(page.locator(".sidebar")).to_be_hidden()
    await expect(message_field(page)).to_be_in_viewport()
    assert watched.faults() == []
    await context.close()


def spoil(path: Path) -> None:
    """Give an exported file values that no page of ours writes."""
    hostile = json.loads(path.read_text())
    attached = {"kind": "image", "name": "x", "url": "https://evil.example/x.png"}
    for message in hostile["conversations"][0]["messages"]:
        message |= {"attachments": [attached], "parent": message["parent"] or message["id"]}
        message |= {"figures": {"perSecond": "fast", "n": [], "worker": 3}}
    hostile["conversations"][0]["settings"] = {"system": 5, "tools": {}, "sampling": []}
    path.write_text(json.dumps(hostile))


async def test_files_that_hold_no_chats_are_refused(
    page: Page, fake_pool: Served, tmp_path: Path
) -> None:
    await page.goto(fake_pool.url)
    bad = tmp_path / "bad.json"
    for text in ("{", "[]", '{"format": "llamapool-chats", "conversations": [{}]}'):
        bad.write_text(text)
        await page.locator(".transfer input").set_input_files(bad)
        await expect(page.locator(".transfer p")).not_to_have_text("")
    await expect(page.locator(".chats a")).to_have_count(0)


async def test_chats_are_found_renamed_exported_deleted_and_imported(
    page: Page, fake_pool: Served, tmp_path: Path
) -> None:
    await answer_with(page, stream({"content": "A *blue* whale."}), stream({"content": "Red."}))
    await page.goto(fake_pool.url)
    await say(page, "Which animal?")
    await answered(page)
    await page.get_by_role("link", name="New chat").click()
    await expect(answers(page)).to_have_count(0)
    await say(page, "Which colour?")
    await answered(page)
    chats = page.locator(".chats a")
    await page.get_by_label("Search in all chats").fill("whale blue")
    await expect(chats).to_have_text(["Which animal?"])
    await chats.first.click()
    await expect(questions(page).locator(".plain")).to_have_text("Which animal?")
    await chats.first.hover()
    await page.get_by_role("button", name="Rename Which animal?").click()
    await page.get_by_label("Title").fill("Animals")
    await page.get_by_role("button", name="Rename", exact=True).click()
    await page.get_by_label("Search in all chats").fill("")
    async with page.expect_download() as coming:
        await page.get_by_role("button", name="Export").click()
    path = tmp_path / "chats.json"
    await (await coming.value).save_as(path)
    for name in ("Animals", "Which colour?"):
        await chats.filter(has_text=name).hover()
        await page.get_by_role("button", name=f"Delete {name}").click()
        await page.get_by_role("button", name="Delete", exact=True).click()
        # The list moves then, and the buttons of the next chat are shown below the pointer only.
        await expect(chats.filter(has_text=name)).to_have_count(0)
    await expect(chats).to_have_count(0)
    spoil(path)
    await page.locator(".transfer input").set_input_files(path)
    await expect(page.locator(".transfer p")).to_have_text("2 chats were added.")
    await chats.filter(has_text="Animals").click()
    await expect(answers(page).locator("em")).to_have_text("blue")
    await page.get_by_role("button", name="Settings of this chat").click()
    await page.get_by_role("button", name="Save", exact=True).click()
    await page.get_by_role("button", name="Delete from here").last.click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(answers(page)).to_have_count(0)
    await expect(questions(page)).to_have_count(1)
