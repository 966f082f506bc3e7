"""Watches the pages of a browser context: errors, broken policies, requests to other hosts."""

from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, ConsoleMessage, Request, WebError

_LOCAL = ("127.0.0.1", "localhost", "")


class Watched:
    """Notes what a page must not do; `allowed` holds parts of messages that a test expects."""

    def __init__(self, context: BrowserContext) -> None:
        self.allowed: list[str] = []
        self._noted: list[str] = []
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)

    def clear(self) -> None:
        """Forget what was noted and what was allowed: another test begins."""
        self.allowed.clear()
        self._noted.clear()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._noted.append(f"console: {message.text}")

    def _on_error(self, error: WebError) -> None:
        self._noted.append(f"uncaught: {error.error}")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in _LOCAL:
            self._noted.append(f"request to another host: {request.url[:200]}")

    def faults(self) -> list[str]:
        """Return what was noted and not expected."""
        return [
            text for text in self._noted if not any(allowed in text for allowed in self.allowed)
        ]
