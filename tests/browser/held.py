"""Responses and reads that a test holds back, so that they come when nobody wants them any more."""

import asyncio

from playwright.async_api import Page

from tests.browser.intercept import Intercepted, intercept

SLOW_READS = """
() => {
  const real = IDBIndex.prototype.getAll;
  window.reads = [];  // those that wait; each is a function that lets it go on
  window.heldChat ??= null;  // the conversation whose messages are not read yet
  IDBIndex.prototype.getAll = function (id) {
    const request = real.call(this, id);
    if (id !== window.heldChat) return request;
    const shown = { result: null, onsuccess: null, onerror: null };
    request.onsuccess = () => {
      shown.result = request.result;
      window.reads.push(() => shown.onsuccess());
    };
    return shown;
  };
}
"""
"""Run before the page's own scripts: reading the messages of one conversation can be held."""

SLOW_WRITES = """
() => {
  const real = IDBDatabase.prototype.transaction;
  window.writes = [];  // those that are done, and that the page has not heard of
  IDBDatabase.prototype.transaction = function (stores, mode) {
    const made = real.call(this, stores, mode);
    if (mode !== 'readwrite') return made;
    const set = (call) => made.addEventListener('complete', () => window.writes.push(call));
    Object.defineProperty(made, 'oncomplete', { set });
    return made;
  };
}
"""
"""Run before the page's own scripts: nothing that is written is ever heard of as written."""

OPEN_ANSWER = """
(events) => {
  const real = window.fetch;
  window.fetch = (url, options) => {
    if (!String(url).endsWith('/v1/chat/completions')) return real(url, options);
    const start = (answer) => {
      answer.enqueue(new TextEncoder().encode(events));
      options.signal.addEventListener('abort', () => answer.error(options.signal.reason));
    };
    const headers = { 'Content-Type': 'text/event-stream' };
    return Promise.resolve(new Response(new ReadableStream({ start }), { headers }));
  };
}
"""
"""Run before the page's own scripts: each answer has these events and goes on until it is ended."""


async def happens(page: Page, condition: str) -> None:
    """Wait until an expression of the page is true; `Page.wait_for_function` needs `eval`."""
    await page.evaluate(
        f"(async () => {{ while (!({condition})) await new Promise(requestAnimationFrame); }})()"
    )


class Held:
    """The requests to an address, answered when the test says so."""

    def __init__(self) -> None:
        self.n_asked = 0
        self._waiting: asyncio.Queue[Intercepted] = asyncio.Queue()

    def hold(self, request: Intercepted) -> None:
        """Take a request; a handler of `intercept`."""
        self.n_asked += 1
        self._waiting.put_nowait(request)

    async def next(self) -> Intercepted:
        """Return the request that came first of those that are left."""
        return await asyncio.wait_for(self._waiting.get(), 15)


async def hold(page: Page, address: str) -> Held:
    """Hold back all requests to an address."""
    held = Held()
    await intercept(page, address, held.hold)
    return held
