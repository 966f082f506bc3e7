"""Chooses between HTTP/1.1 and HTTP/2 as Hypercorn does, with our subclasses of both."""

from collections.abc import Callable
from typing import Any

import h11
from hypercorn.events import Event, RawData
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError, H11Protocol

from gateway.http.protocols.http2 import Http2
from gateway.http.protocols.pause import Pause


class Http1(H11Protocol):
    """Hypercorn's HTTP/1.1, without WebSockets: a server may ignore an upgrade."""

    async def _create_stream(self, request: h11.Request) -> None:
        if any(name == b"upgrade" for name, _ in request.headers):
            request = h11.Request(
                method=request.method,
                target=request.target,
                headers=[header for header in request.headers if header[0] != b"upgrade"],
                http_version=request.http_version,
            )
        await super()._create_stream(request)


class Protocols(ProtocolWrapper):
    """The protocol of one connection, which the client's first bytes choose."""

    def __init__(self, *args: Any, send_s: float, has_left: Callable[[], bool]) -> None:
        super().__init__(*args)
        self._send_s = send_s
        if isinstance(self.protocol, H11Protocol):
            http1: Http1 = self._made(Http1)
            http1.can_read = Pause(http1.can_read, has_left)
            self.protocol = http1
        else:
            self.protocol = self._http2()

    def __repr__(self) -> str:
        return f"<Protocols {type(self.protocol).__name__}>"

    async def handle(self, event: Event) -> None:
        """Handle data; switch to HTTP/2 if the client begins with it or asks for an upgrade."""
        try:
            await self.protocol.handle(event)
        except H2ProtocolAssumedError as error:
            self.protocol, data = self._http2(), error.data
            await self.protocol.initiate()
        except H2CProtocolRequiredError as error:
            self.protocol, data = self._http2(), error.data
            await self.protocol.initiate(error.headers, error.settings)
        else:
            return
        if data:
            await self.protocol.handle(RawData(data=data))

    def _http2(self) -> Http2:
        protocol: Http2 = self._made(Http2)
        protocol.send_s = self._send_s
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
