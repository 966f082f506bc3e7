"""Pictures of the page, taken by tests where `LLAMAPOOL_SCREENSHOTS` names a folder for them."""

import os
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Page

FOLDER = os.environ.get("LLAMAPOOL_SCREENSHOTS", "")
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
"""Colour schemes in which the page is shown, by CSS alone."""


async def take(page: Page, name: str) -> Path | None:
    """Take a picture of what the page shows; returns its file, None without a folder."""
    if not FOLDER:
        return None
    path = Path(FOLDER) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=path, animations="disabled")
    return path
