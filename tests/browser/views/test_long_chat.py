"""A chat of 500 messages: it opens at once, and is there as a whole soon after."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page, expect

from tests.e2e.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

N_MESSAGES = 500
LIMIT_MS = 300
FRAME_LIMIT_MS = 100

ANSWER = """Answer %d with a **word**, a list

- one
- two

and code:

```python
def f(x):
    return x + %d
```
"""

OPEN = """
async () => {
  document.querySelector('.chats a').click();
  while (!document.querySelector('article:last-child .code'))
    await new Promise(requestAnimationFrame);
  return document.querySelectorAll('article').length;
}
"""
SCROLL = """
async () => {
  const box = document.querySelector('.scroller');
  for (let i = 0; i < 60; i++) {
    box.scrollTop -= box.scrollHeight / 60;
    await new Promise(requestAnimationFrame);
  }
}
"""


async def computed_ms(session: CDPSession) -> float:
    """Ask how long the page's main thread has computed: what it waited for a core is not in it."""
    told = await session.send("Performance.getMetrics")
    metrics: list[dict[str, Any]] = told["metrics"]
    seconds = next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")
    return 1000 * seconds


def long_chat() -> str:
    messages = [
        {
            "id": f"m{i}",
            "parent": f"m{i - 1}" if i else None,
            "role": "assistant" if i % 2 else "user",
            "content": ANSWER % (i, i) if i % 2 else f"Question {i}?",
            "createdAt": i + 1,
            "state": "done",
        }
        for i in range(N_MESSAGES)
    ]
    chat = {"title": "Long", "leaf": f"m{N_MESSAGES - 1}", "messages": messages}
    return json.dumps({"format": "llamapool-chats", "version": 1, "conversations": [chat]})


async def test_a_long_chat_opens_at_once_and_scrolls(
    page: Page, fake_pool: Served, tmp_path: Path
) -> None:
    path = tmp_path / "long.json"
    path.write_text(long_chat())
    await page.goto(fake_pool.url)
    await page.locator(".transfer input").set_input_files(path)
    await expect(page.locator(".chats a")).to_have_count(1)
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before_ms = await computed_ms(session)
    n_shown = await page.evaluate(OPEN)
    opened_ms = await computed_ms(session)
    assert opened_ms - before_ms < LIMIT_MS
    assert 0 < n_shown < N_MESSAGES, "all of it was built before any was shown"
    await expect(page.locator("article")).to_have_count(N_MESSAGES)
    await expect(page.get_by_text("Answer 499")).to_be_in_viewport()
    before_ms = await computed_ms(session)
    await page.evaluate(SCROLL)
    assert 0 < await computed_ms(session) - before_ms < 60 * FRAME_LIMIT_MS
    await expect(page.get_by_text("Question 0?")).to_be_attached()
