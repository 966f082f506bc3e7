"""Chooses between HTTP/1.1 and HTTP/2 as Hypercorn does, with our subclasses of both."""

from collections.abc import Callable
from typing import Any

import h11
from hypercorn.events import Event, RawData
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol

from gateway.http.protocols.http2 import Http2, OpenStreams
from gateway.http.protocols.pause import Pause
from gateway.http.protocols.read_turns import ReadTurns


class Http1(H11Protocol):
    """Hypercorn's HTTP/1.1, without upgrades, which a server may ignore.

    Through a proxy that passes them on, an upgrade to HTTP/2 is a tunnel past the proxy's rules: a
    client would write its own `X-Forwarded-For`. Who wants HTTP/2 begins with it.
    """

    async def _check_protocol(self, event: h11.Request) -> None:
        await super()._check_protocol(_without_upgrade(event))

    async def _create_stream(self, request: h11.Request) -> None:
        await super()._create_stream(_without_upgrade(request))


def _without_upgrade(request: h11.Request) -> h11.Request:
    if not any(name == b"upgrade" for name, _ in request.headers):
        return request
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=[header for header in request.headers if header[0] != b"upgrade"],
        http_version=request.http_version,
    )


class Protocols(ProtocolWrapper):
    """The protocol of one connection, which the client's first bytes choose."""

    def __init__(
        self,
        *args: Any,
        send_s: float,
        has_left: Callable[[], bool],
        open_streams: OpenStreams,
        turns: ReadTurns,
    ) -> None:
        super().__init__(*args)
        self._send_s = send_s
        self._open_streams = open_streams
        self._turns = turns
        if isinstance(self.protocol, H11Protocol):
            http1: Http1 = self._made(Http1)
            http1.can_read = Pause(http1.can_read, has_left)
            self.protocol = http1
        else:
            self.protocol = self._http2()

    async def handle(self, event: Event) -> None:
        """Handle data; switch to HTTP/2 if the client begins with it."""
        try:
            await self.protocol.handle(event)
        except H2ProtocolAssumedError as error:
            self.protocol = self._http2()
            await self.protocol.initiate()
            await self.protocol.handle(RawData(data=error.data))

    def _http2(self) -> Http2:
        protocol: Http2 = self._made(Http2)
        protocol.send_s = self._send_s
        protocol.open_streams = self._open_streams
        protocol.turns = self._turns
        return protocol

    def _made(self, kind: Any) -> Any:
        return kind(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.state,
            self.ssl,
            self.client,
            self.server,
            self.send,
        )
