"""What axe finds wrong for people with disabilities on a page."""

from functools import cache
from importlib import resources
from typing import Any

from playwright.async_api import Page

_RUN = "async options => (await axe.run(options)).violations"
"""Returns what is wrong alone: with all that is right, a result has half a megabyte."""
_OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""Axe's rules that look at colours: all that the dark scheme can break, for it is CSS alone."""


@cache
def _axe() -> str:
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


async def violations(page: Page) -> list[str]:
    """Run axe on the page as it is, in both colour schemes; leaves it in the light one.

    Returns a line for each broken rule, with the places.
    """
    await page.emulate_media(color_scheme="light")
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(_axe())
    light: list[dict[str, Any]] = await page.evaluate(_RUN, {})
    await page.emulate_media(color_scheme="dark")
    dark: list[dict[str, Any]] = await page.evaluate(_RUN, {"runOnly": _OF_COLOURS})
    await page.emulate_media(color_scheme="light")
    return [
        f"{scheme}: {one['id']}: {one['help']}: {[node['target'] for node in one['nodes'][:5]]}"
        for scheme, found in (("light", light), ("dark", dark))
        for one in found
    ]
