"""What an answer looks like: Markdown, code, formulas, reasoning, calls, waiting, trouble, keys."""

import base64
import json
import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.chat import (
    ANSWERS,
    answer_with,
    answered,
    answers,
    message_field,
    refuse_with,
    say,
    stream,
)
from tests.browser.held import OPEN_ANSWER
from tests.browser.intercept import intercept
from tests.browser.tab import Tab
from tests.browser.watched import Watched
from tests.e2e.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

MARKDOWN = """# Title

A *word*, a **strong** one, `code`, and a [link](https://example.org/a).

| a | b |
|---|---|
| 1 | 2 |

```python
def add(a, b):
    return a + b  # sum
```

Inline $a^2 + b^2$ and \\(c\\), and as a block:

$$
\\frac{1}{2}
$$

1. one
2. two

- [ref]

[ref]: https://example.org/b
"""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}


async def test_markdown_becomes_elements_of_ours(page: Page, fake_pool: Served) -> None:
    pieces = [{"content": part} for part in re.findall(r"[\s\S]{1,7}", MARKDOWN)]
    await answer_with(page, stream(*pieces))
    await page.goto(fake_pool.url)
    await say(page, "Show all.")
    last = await answered(page)
    for text in ("h1", "em", "strong", "ol > li", ".table td", "pre code"):
        await expect(last.locator(text).first).to_be_visible()
    await expect(last.locator(".code .hljs-keyword")).to_have_text(["def", "return"])
    await expect(last.locator("math")).to_have_count(3)
    await expect(last.locator("math mfrac")).to_be_attached()
    links = last.get_by_role("link")
    await expect(links).to_have_text(["link", "ref"])
    for i in range(2):
        await expect(links.nth(i)).to_have_attribute("target", "_blank")
        await expect(links.nth(i)).to_have_attribute("rel", re.compile("noopener noreferrer"))
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await last.locator(".code-head button").click()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == "def add(a, b):\n    return a + b  # sum\n"


async def test_reasoning_is_folded_and_timed(page: Page, fake_pool: Served) -> None:
    reasoned = [{"reasoning_content": "Let me "}, {"reasoning_content": "see."}]
    await answer_with(page, stream(*reasoned, {"content": "Four."}))
    await page.goto(fake_pool.url)
    await say(page, "2 + 2?")
    last = await answered(page)
    await expect(last.locator(".reasoning summary")).to_contain_text("Reasoned for")
    await expect(last.get_by_text("Let me see.")).to_be_hidden()
    await last.locator(".reasoning summary").click()
    await expect(last.get_by_text("Let me see.")).to_be_visible()


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"success": False, "message": "no active completion for this id"}, "no active"),
        (503, {"error": {"code": 503, "message": "Loading model"}}, "Loading model"),
    ],
)
async def test_reasoning_that_cannot_be_ended_says_so(
    page: Page, tab: Tab, fake_pool: Served, watched: Watched, answer: tuple[int, object, str]
) -> None:
    status, body, said = answer
    watched.allowed.append("503")
    event = {"id": "c", "choices": [{"index": 0, "delta": {"reasoning_content": "Hm."}}]}
    await tab.run_first(
        f"({OPEN_ANSWER})({json.dumps(f'data: {json.dumps(event)}' + chr(10) * 2)})"
    )
    data = json.dumps(body)
    await intercept(page, f"{ANSWERS}/control", lambda one: one.fulfill(data, status=status))
    await page.goto(fake_pool.url)
    await say(page, "2 + 2?")
    await page.get_by_role("button", name="Answer now").click()
    told = answers(page).last.get_by_role("status")
    await expect(told.filter(has_text="The model goes on reasoning")).to_contain_text(said)
    await page.get_by_role("button", name="Stop").click()


async def test_calls_of_tools_are_answered_by_hand(page: Page, fake_pool: Served) -> None:
    started = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"city": '}}
    rest = {"index": 0, "function": {"arguments": '"Paris"}'}}
    call = stream({"tool_calls": [started]}, {"tool_calls": [rest]}, finish="tool_calls")
    asked = await answer_with(page, call, stream({"content": "It rains."}))
    await page.goto(fake_pool.url)
    await page.get_by_role("button", name="Settings of this chat").click()
    await page.get_by_text("Form of the answer, tools").click()
    await page.get_by_label("Tools").fill("[{")
    await expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    await page.get_by_label("Tools").fill(json.dumps(TOOLS))
    await page.get_by_label("JSON schema").fill(json.dumps(SCHEMA))
    await page.get_by_role("button", name="Save", exact=True).click()
    await say(page, "The weather in Paris?")
    last = await answered(page)
    await expect(last.locator(".tool-calls")).to_contain_text('"city": "Paris"')
    await last.get_by_label("Result of weather").fill("rain")
    await last.get_by_role("button", name="Send the result").click()
    await expect((await answered(page, 2)).locator(".markdown")).to_have_text("It rains.")
    assert asked[0]["tools"] == TOOLS
    assert asked[0]["response_format"]["json_schema"]["schema"] == SCHEMA
    called, result = asked[1]["messages"][-2:]
    assert called["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Paris"}',
    }
    assert result == {"role": "tool", "content": "rain", "tool_call_id": "c1"}


async def test_only_changed_settings_are_sent_and_presets_keep_them(
    page: Page, fake_pool: Served
) -> None:
    params = {"temperature": 0.800000011920929, "seed": 4294967295}
    props = {"default_generation_settings": {"params": params}}
    await intercept(page, "*/props*", lambda one: one.fulfill(props))
    asked = await answer_with(page, stream({"content": "Yes."}))
    await page.goto(fake_pool.url)
    await expect(page.locator(".model")).to_have_text("fake")  # it is known which one to ask for
    await say(page, "One.")
    await answered(page)
    await page.get_by_role("button", name="Settings of this chat").click()
    temperature = page.get_by_label("Temperature", exact=True)
    await expect(temperature).to_have_attribute("placeholder", "0.8")
    seed = page.get_by_label("Seed", exact=True)
    await expect(seed).to_have_attribute("placeholder", "random")
    await temperature.fill("0.1")
    await seed.fill("4294970000")  # in six digits the same as llama-server's number for random
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_label("Name of a new preset").fill("brief")
    await page.get_by_role("button", name="Save these settings").click()
    await page.get_by_role("button", name="Reset", exact=True).click()
    await page.get_by_role("button", name="brief", exact=True).click()
    await page.get_by_role("button", name="Save", exact=True).click()
    await say(page, "Two.")
    await answered(page, 2)
    ours = {"model", "messages", "stream", "stream_options", "return_progress", "reasoning_control"}
    assert set(asked[0]) == ours
    assert set(asked[1]) == ours | {"temperature", "seed"}
    assert (asked[1]["temperature"], asked[1]["seed"]) == (0.1, 4294970000)
    roles = [message["role"] for message in asked[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


async def test_trouble_is_told_in_plain_words_with_the_time_to_try_again(
    page: Page, fake_pool: Served, watched: Watched
) -> None:
    watched.allowed += ["status of 429", "status of 503"]
    await refuse_with(page, 429, "queue full: 64 tasks wait", retry_after="2")
    await page.goto(fake_pool.url)
    await say(page, "Hello?")
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("Too many people are asking at the moment.")
    await expect(alert).to_contain_text("queue full: 64 tasks wait")
    again = alert.get_by_role("button", name="Try again")
    await expect(again).to_be_disabled()
    await expect(again).to_have_text(re.compile(r"Try again in [12] s"))
    await answer_with(page, stream({"content": "Hello."}))
    await expect(again).to_be_enabled()
    await again.click()
    await expect((await answered(page)).locator(".markdown")).to_have_text("Hello.")


WORKERS = """
: queue position=2 wait_s=1.0

: worker queue_ms=1400 cached=3 route=load name=gpu-1/chat 0, gpu-2/x

"""


async def test_the_worker_that_ended_an_answer_and_its_wait_are_told_by_the_server(
    page: Page, fake_pool: Served
) -> None:
    started, rest = stream({"content": "One "}, {"content": "two."}).split("\n\n", 1)
    moved = ": worker queue_ms=1900 cached=3 route=prefix name=gpu-3/chat-1\n\n"
    head = {"x_llamapool_worker": "gpu-9/old", "x_llamapool_queue_ms": "70"}
    await answer_with(page, WORKERS + started + "\n\n" + rest)
    await page.goto(fake_pool.url)
    await say(page, "The head was too early.")
    figures = (await answered(page)).locator(".figures")
    await expect(figures).to_contain_text("gpu-1/chat 0, gpu-2/x")
    await expect(figures).to_contain_text("queued 1.4 s")
    await answer_with(page, f"{started}\n\n{moved}{rest}", **head)
    await say(page, "It moved.")
    figures = (await answered(page, 2)).locator(".figures")
    await expect(figures).to_contain_text("gpu-3/chat-1")
    await expect(figures).to_contain_text("queued 1.9 s")
    await expect(figures).not_to_contain_text("gpu-9/old")
    await expect(figures.get_by_title("Worker; chosen for: prefix")).to_be_visible()
    await answer_with(page, f"{started}\n\n{rest}", **head)
    await say(page, "The head said all.")
    figures = (await answered(page, 3)).locator(".figures")
    await expect(figures).to_contain_text("gpu-9/old")
    await expect(figures).to_contain_text("queued 0.07 s")


async def test_an_answer_that_breaks_off_offers_to_go_on(page: Page, fake_pool: Served) -> None:
    error = {"code": 503, "message": "the worker was lost", "type": "unavailable_error"}
    broken = stream({"content": "Once upon "}).split("data: ", 2)[1]
    broken = f"data: {broken}data: {json.dumps({'error': error})}\n\n"
    asked = await answer_with(page, broken, stream({"content": "a time."}))
    await page.goto(fake_pool.url)
    await say(page, "A story.")
    await expect(page.get_by_role("alert")).to_contain_text("the worker was lost")
    await page.get_by_role("alert").get_by_role("button", name="Continue").click()
    await expect(answers(page).locator(".markdown")).to_have_text("Once upon a time.")
    assert asked[1]["messages"][-1] == {"role": "assistant", "content": "Once upon "}


async def test_pictures_are_offered_only_to_models_that_see(page: Page, fake_pool: Served) -> None:
    asked = await answer_with(page, stream({"content": "A dot."}))
    await page.goto(fake_pool.url)
    await expect(message_field(page)).to_be_visible()
    await expect(page.get_by_role("button", name="Attach")).to_have_count(0)
    paste = """
    (field) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array([71, 73, 70])], 'dot.gif', { type: 'image/gif' }));
      const event = new ClipboardEvent('paste', { clipboardData: data, bubbles: true });
      field.dispatchEvent(event);
    }
    """
    await message_field(page).evaluate(paste)
    await expect(page.get_by_text("This model does not see pictures.")).to_be_visible()
    await intercept(
        page,
        "*/props?*",
        lambda one: one.fulfill({"modalities": {"vision": True, "audio": True}}),
    )
    await page.reload()
    await expect(page.get_by_role("button", name="Attach")).to_be_visible()
    await message_field(page).evaluate(paste)
    await expect(page.get_by_alt_text("dot.gif")).to_be_visible()
    await say(page, "What is this?")
    await answered(page)
    picture, text = asked[0]["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/gif;base64,")
    assert text == {"type": "text", "text": "What is this?"}


async def test_sounds_are_sent_and_a_webp_picture_goes_as_one_that_llama_cpp_reads(
    page: Page, fake_pool: Served
) -> None:
    asked = await answer_with(page, stream({"content": "A drum."}))
    await intercept(
        page,
        "*/props?*",
        lambda one: one.fulfill({"modalities": {"vision": True, "audio": True}}),
    )
    await page.goto(fake_pool.url)
    await expect(page.get_by_role("button", name="Attach")).to_be_visible()
    await message_field(page).evaluate(
        """
        async (field) => {
          const canvas = new OffscreenCanvas(3, 2);
          canvas.getContext('2d').fillRect(0, 0, 3, 2);
          const webp = await canvas.convertToBlob({ type: 'image/webp' });
          const data = new DataTransfer();
          data.items.add(new File([webp], 'dot.webp', { type: 'image/webp' }));
          data.items.add(new File([new Uint8Array([82, 73])], 'drum.wav', { type: 'audio/wav' }));
          const event = new DragEvent('drop', { dataTransfer: data, bubbles: true });
          field.dispatchEvent(event);
        }
        """
    )
    await expect(page.get_by_alt_text("dot.webp")).to_be_visible()
    await expect(page.get_by_text("drum.wav")).to_be_visible()
    await say(page, "What is this?")
    await answered(page)
    picture, sound, _ = asked[0]["messages"][0]["content"]
    png = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (3, 2)
    assert sound["input_audio"] == {"data": "Ukk=", "format": "wav"}
    await expect(page.get_by_label("drum.wav")).to_be_visible()
