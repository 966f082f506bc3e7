"""What the documents show, run: in a shell, Node.js, a browser, Python."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.browser.chat import grown
from tests.browser.conftest import SAMPLES
from tests.browser.watched import Watched
from tests.e2e.served import Served

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="session"),
]

QUESTIONS = "Hello. [[eos 40]]\nWhat is the colour of the sky? [[eos 40]]\n"
"""What the worker without a model answers in some words, not in as many as it may."""

EXPORTS = """
async () => {
  const own = await import('/completion.js');
  const params = { n_predict: 4, ignore_eos: true, temperature: 0, stop: [] };
  let text = '';
  for await (const chunk of own.llama('Once upon a time', params)) text += chunk.data.content;
  const whole = await own.llamaPromise('Once upon a time', params);
  const target = own.llamaEventTarget('Once upon a time', params);
  const told = await new Promise((done) => target.addEventListener('done', (e) => done(e.detail)));
  let last = '';
  const call = (chunk) => { last += chunk.data.content; };
  await own.llamaComplete({ prompt: 'Once upon a time', ...params }, null, call);
  const info = await own.llamaModelInfo();
  return [text, whole, told.content, last, typeof info.n_ctx];
}
"""

REQUESTS = """
import json, sys, requests
url = sys.argv[1]
body = {"prompt": "Once upon a time", "n_predict": 4, "ignore_eos": True}
print(requests.post(url + "/completion", json=body).json()["content"])
with requests.post(url + "/completion", json={**body, "stream": True}, stream=True) as response:
    for line in response.iter_lines():
        if line:
            print(json.loads(line.decode("utf-8")[6:])["content"], end="")
"""


async def run(*command: str | Path, typed: str = "") -> str:
    """Return what a program prints; it has to be installed and to succeed."""
    program = str(command[0])
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={key: value for key, value in os.environ.items() if not key.startswith("API_")},
    )
    out, err = await asyncio.wait_for(process.communicate(typed.encode()), 60)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_a_shell_holds_a_dialog(fake_pool: Served) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    printed = await run("bash", SAMPLES / "chat.sh", fake_pool.url, typed=QUESTIONS)
    assert len(printed.splitlines()) >= 2 and printed.strip()


async def test_node_holds_a_dialog(fake_pool: Served) -> None:
    printed = await run("node", SAMPLES / "chat.mjs", fake_pool.url, typed=QUESTIONS)
    assert printed.count("> ") == 3 and len(printed.splitlines()) >= 3


async def test_python_posts_and_streams(pool: Served) -> None:
    pytest.importorskip("requests", reason="requests is not installed")
    assert (await run(sys.executable, "-c", REQUESTS, pool.url)).strip()


async def test_the_documents_page_writes_what_it_streams(
    page: Page, pool: Served, watched: Watched
) -> None:
    watched.allowed += ["document.write", "Quirks Mode", "404"]
    await page.goto(f"{pool.url}/jokes.html", wait_until="commit")
    await grown(page.locator("body"))


async def test_every_export_of_completion_js_answers(page: Page, pool: Served) -> None:
    await page.goto(f"{pool.url}/pool")
    text, whole, told, last, kind = await page.evaluate(EXPORTS)
    assert text and text == whole == told == last
    assert kind == "number"


async def test_the_page_of_forty_lines_goes_on_and_stops(
    page: Page, pool: Served, watched: Watched
) -> None:
    watched.allowed.append("404")
    await page.goto(f"{pool.url}/page.html")
    await page.get_by_role("button", name="Go on").click()
    output = page.locator("output")
    await grown(output, 30)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    await expect(output).to_contain_text("Once upon a time")
    lines = (SAMPLES / "page.html").read_text().splitlines()
    assert len(lines) <= 42
