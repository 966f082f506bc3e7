"""The page for people who see little, hear it, use no mouse, or want no motion."""

from typing import Literal

import pytest
from playwright.async_api import Page, expect

from tests.browser.axe import violations
from tests.browser.chat import (
    ANSWERS,
    answer_with,
    answered,
    answers,
    message_field,
    questions,
    refuse_with,
    say,
    stream,
)
from tests.browser.held import hold
from tests.browser.intercept import intercept
from tests.browser.watched import Watched
from tests.e2e.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TEXT = """# Head

First *sentence*. Second one! A third

- one [link](https://example.org)

```python
x = 1  # a comment
```

| a | b |
|---|---|
| 1 | 2 |

$a^2$
"""
CALL = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": "{}"}}

SAID = """
() => {
  window.said = [];
  const region = document.querySelector('[aria-live]');
  new MutationObserver(() => window.said.push(region.textContent))
    .observe(region, { childList: true, subtree: true, characterData: true });
}
"""


async def test_axe_finds_nothing(page: Page, fake_pool: Served, watched: Watched) -> None:
    watched.allowed.append("status of 429")
    await page.goto(fake_pool.url)
    await expect(page.locator(".model")).to_have_text("fake")
    assert await violations(page) == []
    reasoned = {"reasoning_content": "Hm."}
    await answer_with(page, stream(reasoned, {"content": TEXT}, {"tool_calls": [CALL]}))
    await say(page, "Say all.")
    await answered(page)
    await expect(page.locator(".hljs-comment")).to_be_attached()
    await page.locator(".reasoning summary").click()
    assert await violations(page) == []
    await page.get_by_role("button", name="Settings of this chat").click()
    await page.get_by_text("All settings").click()
    await page.get_by_text("Form of the answer, tools").click()
    assert await violations(page) == []
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="API key").click()
    assert await violations(page) == []
    await page.keyboard.press("Escape")
    await refuse_with(page, 429, "full", retry_after="30")
    await questions(page).get_by_role("button", name="Edit").click()
    assert await violations(page) == []
    await page.get_by_label("Text of the message").fill("Again.")
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_role("alert")).to_be_visible()
    assert await violations(page) == []
    await page.set_viewport_size({"width": 360, "height": 640})
    await page.get_by_role("button", name="Chats").click()
    assert await violations(page) == []


async def test_a_screen_reader_hears_sentences_and_the_end(page: Page, fake_pool: Served) -> None:
    words = [{"content": word} for word in TEXT.replace(" ", "| ").split("|") if word]
    await answer_with(page, stream(*words))
    await page.goto(fake_pool.url)
    await expect(message_field(page)).to_be_visible()
    await page.evaluate(SAID)
    await say(page, "Say all.")
    await answered(page)
    await expect(page.locator("[aria-live]")).to_contain_text("The answer is complete.")
    said: list[str] = list(filter(None, await page.evaluate("window.said")))
    assert len(said) <= 3
    heard = " ".join(said)
    assert "First sentence. Second one!" in heard and "**" not in heard and "https" not in heard


async def test_everything_is_reached_by_keyboard(page: Page, fake_pool: Served) -> None:
    await answer_with(page, stream({"content": "One."}), stream({"content": "Two."}))
    await page.goto(fake_pool.url)
    await expect(message_field(page)).to_be_focused()
    await page.keyboard.type("Hello.")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("Dear model.")
    await page.keyboard.press("Enter")
    await answered(page)
    await expect(questions(page).locator(".plain")).to_have_text("Hello.\nDear model.")
    reached: list[str] = []
    for _ in range(30):
        await page.keyboard.press("Shift+Tab")
        label = "document.activeElement.getAttribute('aria-label') || document.activeElement.title"
        reached.append(await page.evaluate(f"{label} || document.activeElement.textContent"))
        if reached[-1] == "Regenerate":
            break
    assert reached[-1] == "Regenerate", reached
    await page.keyboard.press("Enter")
    await expect(answers(page).locator(".markdown")).to_have_text("Two.")


async def test_the_place_in_the_queue_is_shown(
    page: Page, fake_pool: Served, watched: Watched
) -> None:
    body = stream({"content": "Here."}, comments=["queue position=3 wait_s=4.2", "x", ""])
    head = body.partition("data: ")[0]
    await intercept(page, ANSWERS, lambda one: one.fulfill(head, content_type="text/event-stream"))
    await page.goto(fake_pool.url)
    await page.evaluate(
        """
        () => {
          window.waited = [];
          new MutationObserver(() => {
            const text = document.querySelector('.waiting')?.textContent;
            if (text) window.waited.push(text);
          }).observe(document.body, { childList: true, subtree: true, characterData: true });
        }
        """
    )
    await say(page, "Hello?")
    await expect(page.get_by_role("alert")).to_contain_text("The answer broke off.")
    waited: list[str] = await page.evaluate("window.waited")
    assert "Number 3 in the queue, about 4 s" in " ".join(waited)


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
async def test_nothing_moves_for_those_who_want_no_motion(
    page: Page, fake_pool: Served, motion: Literal["reduce", "no-preference"]
) -> None:
    held = await hold(page, ANSWERS)
    await page.emulate_media(reduced_motion=motion)
    await page.goto(fake_pool.url)
    await say(page, "Hello?")
    await held.next()
    pulse = page.locator(".waiting .pulse")
    await expect(pulse).to_have_css("animation-name", "none" if motion == "reduce" else "pulse")
    moving = """() => [...document.querySelectorAll('*')].filter((one) => {
      const { animationName, transitionDuration, scrollBehavior } = getComputedStyle(one);
      const isStill = animationName === 'none' && /^(0s(, )?)+$/.test(transitionDuration);
      return !isStill || scrollBehavior === 'smooth';
    }).length"""
    n_moving = await page.evaluate(moving)
    assert n_moving == 0 if motion == "reduce" else n_moving > 0
