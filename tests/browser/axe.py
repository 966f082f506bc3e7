"""What axe finds wrong for people with disabilities on a page."""

from importlib import resources
from typing import Any

from playwright.async_api import Page

_AXE = resources.files("axe_playwright_python").joinpath("axe.min.js")


async def violations(page: Page) -> list[str]:
    """Run axe on the page as it is; returns a line for each broken rule, with the places."""
    await page.evaluate(_AXE.read_text())
    found: dict[str, Any] = await page.evaluate("axe.run()")
    return [
        f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes'][:5]]}"
        for one in found["violations"]
    ]
