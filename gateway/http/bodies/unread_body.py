"""Reads what is left of a body when its request is answered early: 401, 403, 404, 429, 501.

HTTP/1.1 cannot stop a body that is on its way. Whoever closes the connection meanwhile resets it,
and a client that still sends loses the answer (RFC 9112, section 9.6). So the rest is read and
dropped, within the limits of any body; then the connection serves the next request.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.bodies.body import BodyLimits, is_far_too_large, skip


class _Reader:
    """The messages of one request; knows whether its body has come to its end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_over = False

    async def receive(self) -> Message:
        """Return the next message."""
        message = await self._receive()
        self.is_over = not message.get("more_body", False)  # http.disconnect has none
        return message


class UnreadBodyMiddleware:
    """Holds the end of an answer back until the body of its request has come."""

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not _brings_body(scope) or is_far_too_large(scope, self._limits):
            await self._app(scope, receive, send)
            return
        reader = _Reader(receive)

        async def forward(message: Message) -> None:
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_end and not reader.is_over:
                await send({**message, "more_body": True})
                await skip(reader.receive, self._limits)
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        await self._app(scope, reader.receive, forward)


def _brings_body(scope: Scope) -> bool:
    """Return whether a body comes over HTTP/1; a stream of HTTP/2 ends without its connection."""
    if scope["type"] != "http" or scope.get("http_version") == "2":
        return False
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in scope["headers"]
    )
