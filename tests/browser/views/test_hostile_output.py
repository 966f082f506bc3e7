"""What a model may write: scripts, SVG, links, styles, a megabyte on a line. It does nothing."""

import pytest
from playwright.async_api import Page, expect

from tests.browser.chat import answer_with, answered, say, stream
from tests.browser.watched import Watched
from tests.e2e.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

HOSTILE = """
<script>window.hit = 1</script>
<img src=x onerror="window.hit = 2">
<svg onload="window.hit = 3"><script>window.hit = 4</script></svg>
<iframe src="javascript:window.hit = 5"></iframe>
<style>body { display: none }</style><base href="https://evil.example/">
<form action="https://evil.example"><button>Go</button></form>

[a](javascript:window.hit=6) [b](JaVaScRiPt:window.hit=7) [c](data:text/html,<script>1</script>)
[d](vbscript:x) [e](&#106;avascript:window.hit=8) <javascript:window.hit=9> [f](//evil.example/f)
![p](https://evil.example/p.png "onerror=window.hit=10") ![q](x" onerror="window.hit=11)

[g]: javascript:window.hit=12
[g] [h](https://evil.example/" onclick="window.hit=13)

```"><img src=x onerror=window.hit=14>
</code></pre><script>window.hit = 15</script>
```

```html
<img src=x onerror="window.hit = 16">
```

$\\href{javascript:window.hit=17}{x} \\includegraphics{https://evil.example/i.png}$
$$\\htmlStyle{display:none}{x}\\def\\a{\\a\\a}\\a$$
$</span><img src=x onerror=window.hit=18>$

| <img src=x onerror=window.hit=19> | b |
|---|---|
| `</td><script>window.hit=20</script>` | <b onmouseover="window.hit=21">x</b> |
"""
UNSAFE = """
() => [...document.querySelectorAll('#app *')].filter((one) =>
  /^(script|iframe|img|form|style|base|object|embed|link)$/i.test(one.localName) &&
    !one.matches('.composer, .tool-calls') ||
  [...one.attributes].some(({ name, value }) =>
    /^on/i.test(name) || /^\\s*(javascript|vbscript|data):/i.test(value)),
).map((one) => one.outerHTML.slice(0, 200))
"""


async def test_nothing_that_a_model_writes_runs(page: Page, fake_pool: Served) -> None:
    reasoned = {"reasoning_content": HOSTILE}
    call = {"index": 0, "id": "<b>", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    await answer_with(
        page,
        stream({"content": HOSTILE[:200]}, {"content": HOSTILE[200:]}),
        stream(reasoned, {"content": HOSTILE}, {"tool_calls": [call]}),
        x_llamapool_worker="<img src=x onerror=window.hit=22>",
    )
    await page.goto(fake_pool.url)
    await say(page, HOSTILE)
    first = await answered(page)
    await expect(first.locator(".code").first).to_be_visible()
    await say(page, "Again.")
    last = await answered(page, 2)
    await last.locator(".reasoning summary").click()
    for link in await page.locator("article").get_by_role("link").all():
        address = await link.get_attribute("href")
        assert address and address.startswith(("https://evil.example", "http"))
    assert await page.evaluate(UNSAFE) == []
    assert await page.evaluate("window.hit") is None
    await page.reload()
    await expect(page.locator("article.assistant")).to_have_count(2)
    assert await page.evaluate("window.hit") is None


@pytest.mark.parametrize("piece", ["x", "[", "$", "> "])
async def test_a_line_of_a_megabyte_leaves_the_page_alive(
    page: Page, fake_pool: Served, piece: str, watched: Watched
) -> None:
    line = piece * (1_000_000 // len(piece))
    parts = [{"content": line[i : i + 100_000]} for i in range(0, len(line), 100_000)]
    await answer_with(page, stream(*parts, {"content": "\n\nThe *end*."}))
    await page.goto(fake_pool.url)
    await say(page, "Write much.")
    last = await answered(page)
    await expect(last.locator("em").last).to_have_text("end")
    await page.get_by_role("link", name="New chat").click()
    await expect(page.get_by_text("What is on your mind?")).to_be_visible()
