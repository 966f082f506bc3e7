"""Requests of a page that a test answers itself, through Chromium's own protocol.

Playwright's `Page.route` asks the test's process about each of a page's sixty files, and turns the
browser's cache off; here only the requests to an address are held up.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

from playwright.async_api import CDPSession, Error, Page


class Intercepted:
    """A request that waits for its answer."""

    def __init__(self, session: CDPSession, event: Mapping[str, Any]) -> None:
        self.url: str = event["request"]["url"]
        self._request: Mapping[str, Any] = event["request"]
        self._id: str = event["requestId"]
        self._session = session

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object that was sent."""
        parts = self._request["postDataEntries"]
        found = json.loads(b"".join(base64.b64decode(one["bytes"]) for one in parts))
        assert isinstance(found, dict)
        return found

    async def fulfill(
        self,
        body: str | Mapping[str, Any],
        *,
        status: int = 200,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer with a text, or with an object as JSON."""
        text = body if isinstance(body, str) else json.dumps(body)
        sent = {"Content-Type": content_type, **(headers or {})}
        answer = {
            "responseCode": status,
            "responseHeaders": [{"name": name, "value": value} for name, value in sent.items()],
            "body": base64.b64encode(text.encode()).decode(),
        }
        await self._send("Fetch.fulfillRequest", answer)

    async def abort(self) -> None:
        """Let it fail, as without a network."""
        await self._send("Fetch.failRequest", {"errorReason": "Failed"})

    async def go_on(self) -> None:
        """Let it go to its server."""
        await self._send("Fetch.continueRequest", {})

    async def _send(self, method: str, what: Mapping[str, Any]) -> None:
        with contextlib.suppress(Error):  # the page has given it up, or is closed
            await self._session.send(method, {"requestId": self._id, **what})


Handler = Callable[[Intercepted], Awaitable[None] | None]


class _Interception:
    """The addresses of a page that are held up, and who answers them."""

    def __init__(self, session: CDPSession) -> None:
        self.session = session
        self.handlers: dict[str, Handler] = {}
        self._running: set[asyncio.Future[None]] = set()
        session.on("Fetch.requestPaused", self._paused)

    async def look(self) -> None:
        """Tell the browser which requests it must ask about."""
        patterns = [{"urlPattern": one} for one in self.handlers]
        how = ("Fetch.enable", {"patterns": patterns}) if patterns else ("Fetch.disable", {})
        await self.session.send(*how)

    def _paused(self, event: Mapping[str, Any]) -> None:
        one = Intercepted(self.session, event)
        fitting = (who for address, who in self.handlers.items() if fnmatchcase(one.url, address))
        # Without one it was asked for before the address was released.
        answering = next(fitting, Intercepted.go_on)(one)
        if answering is not None:
            running = asyncio.ensure_future(answering)
            self._running.add(running)
            running.add_done_callback(self._running.discard)


_OF_PAGE: WeakKeyDictionary[Page, _Interception] = WeakKeyDictionary()


async def intercept(page: Page, address: str, handler: Handler) -> None:
    """Let a handler answer all requests to an address, in which `*` stands for anything."""
    if page not in _OF_PAGE:
        _OF_PAGE[page] = _Interception(await page.context.new_cdp_session(page))
    found = _OF_PAGE[page]
    found.handlers[address] = handler
    await found.look()


async def release(page: Page, address: str = "") -> None:
    """Let the requests to an address go to its server again; all requests without one."""
    found = _OF_PAGE.get(page)
    if found is None:
        return
    if address:
        del found.handlers[address]
    else:
        found.handlers.clear()
    await found.look()
