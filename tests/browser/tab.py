"""A page that serves many tests, each of which finds it as if nobody had been there before.

A page of its own costs a test a second of CPU: two processes, all scripts read and compiled anew.
"""

from playwright.async_api import Browser, CDPSession, Page, ViewportSize

from tests.browser.intercept import release
from tests.browser.watched import Strangers, Watched

SIZE = ViewportSize(width=1280, height=800)
_NOWHERE = "about:blank"


async def leave(page: Page) -> None:
    """Go to an empty page: nothing of the one before runs any more, or asks its server."""
    if page.url.startswith("http"):
        await page.evaluate("sessionStorage.clear()")  # which no other page can
    if page.url != _NOWHERE:
        await page.goto(_NOWHERE)


class Tab:
    """A page, its context, and what its pages do wrong."""

    def __init__(self, page: Page, strangers: Strangers) -> None:
        self.page = page
        self.context = page.context
        self.watched = Watched(self.context, strangers)
        self._origins: set[str] = set()
        self._session: CDPSession | None = None
        self.context.on("page", self._note_origins)
        self._note_origins(page)

    def _note_origins(self, page: Page) -> None:
        """Remember who may have stored something: whoever a page was loaded from."""
        page.on("framenavigated", lambda frame: self._origins.add(_origin(frame.url)))

    async def run_first(self, script: str) -> None:
        """Run a script before those of each page that the test opens in this tab."""
        if self._session is None:
            self._session = await self.context.new_cdp_session(self.page)
            await self._session.send("Page.enable")
        what = {"source": script, "runImmediately": False}
        await self._session.send("Page.addScriptToEvaluateOnNewDocument", what)

    async def clear(self) -> None:
        """Undo what a test has done: to the page, to its context, and to what is stored."""
        page, context = self.page, self.context
        for other in context.pages:
            if other is not page:
                await other.close()
        await context.set_offline(False)
        await context.clear_permissions()
        await context.unroute_all(behavior="ignoreErrors")
        await page.unroute_all(behavior="ignoreErrors")
        await release(page)
        if self._session is not None:
            await self._session.detach()  # its scripts go with it
            self._session = None
        await leave(page)
        await self._forget()
        await page.set_viewport_size(SIZE)
        await page.emulate_media(reduced_motion="reduce", color_scheme="null")
        await page.mouse.move(0, 0)

    async def _forget(self) -> None:
        await self.context.clear_cookies()
        session = await self.context.new_cdp_session(self.page)
        for origin in self._origins - {_NOWHERE}:
            what = {"origin": origin, "storageTypes": "all"}
            await session.send("Storage.clearDataForOrigin", what)
        await session.detach()
        self._origins.clear()


def _origin(url: str) -> str:
    return "/".join(url.split("/")[:3])


async def open_tab(browser: Browser, strangers: Strangers) -> Tab:
    """Open a page in a browser that remembers nothing, 1280 by 800."""
    context = await browser.new_context(viewport=SIZE, reduced_motion="reduce")
    context.set_default_timeout(15_000)
    return Tab(await context.new_page(), strangers)
