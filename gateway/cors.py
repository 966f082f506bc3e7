"""Cross-origin requests, as llama-server answers them: any origin, echoed."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PREFLIGHT = (
    (b"access-control-allow-credentials", b"true"),
    (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"*"),
    (b"content-type", b"text/html"),
    (b"content-length", b"0"),
)
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after")


class CorsMiddleware:
    """Answers every OPTIONS, without a key, and lets the page of any origin read the rest."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight, or mark the response as readable."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        if scope["method"] == "OPTIONS":
            headers = [(b"access-control-allow-origin", origin or b"*"), *_PREFLIGHT]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        if not origin:
            await self._app(scope, receive, send)
            return

        async def allow(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        await self._app(scope, receive, allow)
