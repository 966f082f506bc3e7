"""A chat of 500 messages: it opens at once, and is there as a whole soon after."""

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.e2e.served import Served

pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

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
  const start = performance.now();
  document.querySelector('.chats a').click();
  for (;;) {
    await new Promise(requestAnimationFrame);
    const last = document.querySelector('article:last-child .code');
    if (last) return performance.now() - start;
  }
}
"""
SCROLL = """
async () => {
  const box = document.querySelector('.scroller');
  let before = performance.now();
  const frames = [];
  for (let i = 0; i < 60; i++) {
    box.scrollTop -= box.scrollHeight / 60;
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - before);
    before = performance.now();
  }
  return frames.sort((a, b) => a - b)[30]; // the median: another process may take one
}
"""


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
    assert await page.evaluate(OPEN) < LIMIT_MS
    await expect(page.locator("article")).to_have_count(N_MESSAGES)
    await expect(page.get_by_text("Answer 499")).to_be_in_viewport()
    assert await page.evaluate(SCROLL) < FRAME_LIMIT_MS
    await expect(page.get_by_text("Question 0?")).to_be_attached()
