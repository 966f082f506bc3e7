"""`/index.js`, from which pages of llama-server took Preact, its hooks and signals, and htm."""

from typing import Any

import pytest
from playwright.async_api import Page

from tests.e2e.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SCRIPT = """
async (url) => {
  const page = await import(url);
  const { html, render, signal, computed, useSignal, Component } = page;
  const names = signal(['x', 'y', 'z']);
  const n = computed(() => names.value.length);
  const Item = ({ name }) => {
    const clicks = useSignal(0);
    return html`<li onclick=${() => clicks.value++}>${name}:${clicks}</li>`;
  };
  class Total extends Component {
    render({ children }) {
      return html`<b>${n}${children}</b>`;
    }
  }
  const List = () => html`
    <ul>${names.value.map((name) => html`<${Item} key=${name} name=${name} />`)}</ul>
    <${Total}>!<//>
  `;
  const body = document.createElement('div');
  render(html`<${List} />`, body);
  const settled = () => new Promise((done) => setTimeout(done, 30));
  const shown = [body.innerHTML];
  body.querySelectorAll('li')[1].click();
  await settled();
  names.value = ['z', 'y'];
  await settled();
  return [...shown, body.innerHTML, typeof page.useEffect, typeof page.createElement];
}
"""


async def test_a_page_describes_itself_and_follows_signals(page: Page, fake_pool: Served) -> None:
    await page.goto(f"{fake_pool.url}/pool")
    told: list[Any] = await page.evaluate(SCRIPT, f"{fake_pool.url}/index.js")
    assert told == [
        "<ul><li>x:0</li><li>y:0</li><li>z:0</li></ul><b>3!</b>",
        "<ul><li>z:0</li><li>y:1</li></ul><b>2!</b>",
        "function",
        "function",
    ]
