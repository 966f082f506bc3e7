"""The view of the pool in a test's words."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Locator, Page, expect

from tests.browser.tab import leave


@asynccontextmanager
async def leaving(page: Page) -> AsyncIterator[None]:
    """Leave the view in all tabs in the end: one whose server ends first writes to the console."""
    yield
    for tab in page.context.pages:
        await leave(tab)


async def use_key(page: Page, key: str) -> None:
    """Answer the page's question for the key."""
    await page.get_by_role("textbox", name="API key").fill(key)
    await page.get_by_role("button", name="Use this key").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)


def cells(page: Page, phase: str) -> Locator:
    """Return the cells of the slots in one phase: `r` reads, `w` writes, '' is idle."""
    return page.locator(f".worker .cells i[class='{phase}']")


async def fill_of(cell: Locator) -> float:
    """Return which share of a cell is filled."""
    script = "element => Number(getComputedStyle(element).getPropertyValue('--fill'))"
    fill: float = await cell.evaluate(script)
    return fill


async def tab_to(page: Page, name: str, most: int = 60) -> list[str]:
    """Press Tab until an element of this name has the focus; returns all names on the way."""
    reached: list[str] = []
    script = """() => {
      const { ariaLabel, textContent, id } = document.activeElement;
      return (ariaLabel ?? textContent ?? id).trim();
    }"""
    for _ in range(most):
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate(script))
        if reached[-1] == name:
            return reached
    raise AssertionError(f"{name!r} is not reached: {reached}")
