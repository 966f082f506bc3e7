"""The chat of the page in a test's words, and answers that never left a server."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from playwright.async_api import Locator, Page, Request, expect

from tests.browser.intercept import Intercepted, intercept

ANSWERS = "*/v1/chat/completions"

Delta = Mapping[str, Any]


def message_field(page: Page) -> Locator:
    """Return the field in which one writes."""
    return page.get_by_role("textbox", name="Message", exact=True)


async def say(page: Page, text: str) -> None:
    """Write a message and send it."""
    await message_field(page).fill(text)
    await page.keyboard.press("Enter")


def questions(page: Page) -> Locator:
    """Return the user's messages."""
    return page.locator("article.user")


def answers(page: Page) -> Locator:
    """Return the answers."""
    return page.locator("article.assistant")


async def answered(page: Page, n: int = 1) -> Locator:
    """Wait until so many answers are shown and the last has ended; returns that one."""
    await expect(answers(page)).to_have_count(n)
    last = answers(page).nth(n - 1)
    await expect(last.locator(".figures")).to_be_attached()
    return last


async def grown(locator: Locator, n: int = 20) -> str:
    """Wait until a text is longer than so many characters; returns it."""
    await expect(locator).to_have_text(re.compile(rf"^[\s\S]{{{n + 1},}}$"), use_inner_text=True)
    return await locator.inner_text()


def written(page: Page) -> Locator:
    """Return the text of the last answer."""
    return answers(page).last.locator(".markdown")


def body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request."""
    body = request.post_data_json
    assert isinstance(body, dict)
    return body


def stream(*deltas: Delta, finish: str = "stop", comments: Sequence[str] = ()) -> str:
    """Write the events of an answer."""
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": dict(delta)}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    usage = {"completion_tokens": 7, "prompt_tokens": 12}
    chunks.append({"choices": [], "usage": usage, "timings": {"predicted_per_second": 42.0}})
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return "".join(f": {one}\n\n" for one in comments) + events + "data: [DONE]\n\n"


async def answer_with(page: Page, *bodies: str, **headers: str) -> list[dict[str, Any]]:
    """Answer the page's requests with these streams, in turn; returns what it asks, as it asks."""
    asked: list[dict[str, Any]] = []
    left = list(bodies)

    async def fulfil(request: Intercepted) -> None:
        asked.append(request.body)
        body = left.pop(0) if len(left) > 1 else left[0]
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        await request.fulfill(body, content_type="text/event-stream", headers=shown)

    await intercept(page, ANSWERS, fulfil)
    return asked


async def refuse_with(page: Page, status: int, message: str, **headers: str) -> None:
    """Refuse the page's requests."""
    error = {"code": status, "message": message, "type": "error"}

    async def fulfil(request: Intercepted) -> None:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        await request.fulfill({"error": error}, status=status, headers=shown)

    await intercept(page, ANSWERS, fulfil)
