"""Pictures of the page for the documents, taken on demand:

LLAMAPOOL_SCREENSHOTS=docs/using/pictures python -m pytest tests/browser/views/test_pictures.py
"""

from collections.abc import AsyncIterator
from typing import Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from tests.browser.chat import answer_with, answered, message_field, refuse_with, say, stream
from tests.browser.pictures import FOLDER
from tests.browser.pictures import take as take_picture
from tests.e2e.served import Served

LARGEST_BYTES = 60_000
MODEL = "Qwen3-8B-Q4_K_M"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="LLAMAPOOL_SCREENSHOTS names no folder"),
    pytest.mark.asyncio(loop_scope="session"),
]

ANSWER = """Euler's method follows the tangent for a small step $h$:

$$
y_{n+1} = y_n + h \\, f(t_n, y_n)
$$

In Python:

```python
def euler(f, y, t, h, n):
    for _ in range(n):
        y += h * f(t, y)  # along the tangent
        t += h
    return y
```
"""
CALL = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}


@pytest_asyncio.fixture(params=["light", "dark"], loop_scope="session")
async def view(
    request: pytest.FixtureRequest, browser: Browser, fake_pool: Served
) -> AsyncIterator[Page]:
    """The page in both colour schemes, of a size that documents have room for."""
    scheme: Literal["light", "dark"] = request.param
    context = await browser.new_context(
        viewport={"width": 960, "height": 640}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = await context.new_page()

    async def name_model(route: Route) -> None:
        await route.fulfill(json={"data": [{"id": MODEL}]})

    async def describe_model(route: Route) -> None:
        await route.fulfill(response=await route.fetch(url=f"{fake_pool.url}/props"))

    await page.route("**/v1/models", name_model)
    await page.route("**/props?*", describe_model)
    await page.goto(fake_pool.url)
    await expect(page.locator(".model")).to_have_text(MODEL)
    page.set_default_timeout(10_000)
    yield page
    await context.close()


async def take(page: Page, name: str) -> None:
    """Take a picture."""
    scheme = await page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    path = await take_picture(page, f"{name}{'-dark' if scheme else ''}")
    assert path is not None and path.stat().st_size < LARGEST_BYTES, path


async def test_an_answer(view: Page) -> None:
    reasoned = {"reasoning_content": "They want the method and an example."}
    worker = {"x_llamapool_worker": "gpu-1/chat-0", "x_llamapool_queue_ms": "420"}
    await answer_with(view, stream(reasoned, {"content": ANSWER}), **worker)
    await say(view, "How does Euler's method work?")
    last = await answered(view)
    await expect(last.locator(".hljs-keyword").first).to_be_visible()
    await view.locator(".scroller").evaluate("(box) => { box.scrollTop = 0 }")
    await take(view, "answer")


async def test_a_call_of_a_tool(view: Page) -> None:
    await answer_with(view, stream({"tool_calls": [CALL]}, finish="tool_calls"))
    await say(view, "What is the weather in Paris?")
    await answered(view)
    await take(view, "tool-call")


async def test_the_settings(view: Page) -> None:
    await view.get_by_role("button", name="Settings of this chat").click()
    await view.get_by_label("System prompt").fill("You are a patient teacher.")
    await view.get_by_label("Temperature", exact=True).fill("0.3")
    await view.get_by_label("Top K", exact=True).focus()
    await take(view, "settings")


async def test_a_busy_server(view: Page) -> None:
    await refuse_with(view, 429, "64 requests wait already", retry_after="20")
    await say(view, "Hello?")
    await expect(view.get_by_role("alert")).to_be_visible()
    await take(view, "busy")


async def test_the_beginning_and_the_key(view: Page) -> None:
    await take(view, "empty")
    await view.get_by_role("button", name="API key").click()
    await take(view, "key")


async def test_a_phone(view: Page) -> None:
    await view.set_viewport_size({"width": 360, "height": 640})
    await answer_with(view, stream({"content": ANSWER}))
    await say(view, "How does Euler's method work?")
    await answered(view)
    await take(view, "phone")
    await view.get_by_role("button", name="Chats").click()
    await take(view, "phone-chats")
    await expect(message_field(view)).to_be_attached()
