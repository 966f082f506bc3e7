"""Chunks of an HTTP/1.1 body on the short way to the transport, past the layers of the server.

Between the head of a response and its end, a frame changes nothing in any layer that it passes:
Starlette's and our wrappers wait for the head, Hypercorn and h11 write `length CRLF frame CRLF`
and keep their state. That is thirty Python functions for every token, and with cold caches they
cost more than all the rest of the gateway. Whoever has sent such a head may therefore write the
chunk itself, as long as nothing waits in the transport. Everything else takes the long way through
`send`: heads and ends, HTTP/2 and HTTP/1.0, whatever has to wait, and connections that are gone.
"""

import asyncio

from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from starlette.types import ASGIApp, Receive, Scope, Send

CHUNKS = "chunks"
"""Where in the scope an endpoint finds the short way, None if its request has none."""


class Chunks:
    """Writes chunks of a body whose head is out and has no length."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport

    def write(self, frame: bytes) -> bool:
        """Write a frame that is not empty; false if it has to take the long way."""
        transport = self._transport
        if transport.get_write_buffer_size() or transport.is_closing():
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        return True


class ChunksMiddleware:
    """Stands before everything else, for it has to see the server's own `send`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look for the short way and pass the request on."""
        if scope["type"] == "http":
            scope[CHUNKS] = short_way(scope, send)
        await self._app(scope, receive, send)


def short_way(scope: Scope, send: Send) -> Chunks | None:
    """Return the short way of a request, if it came by HTTP/1.1 over a Hypercorn that we know."""
    if scope["http_version"] != "1.1" or scope["method"] == "HEAD":
        return None
    # Hypercorn has no interface for this: each layer is found as the owner of the next `send`.
    stream = getattr(send, "__self__", None)
    protocol = getattr(stream.send, "__self__", None) if isinstance(stream, HTTPStream) else None
    server = getattr(protocol.send, "__self__", None) if isinstance(protocol, H11Protocol) else None
    if not isinstance(server, TCPServer):
        return None
    return Chunks(server.writer.transport)
