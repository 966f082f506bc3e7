"""GET /pool/events: the live feed as server-sent events.

`reader` says what the client may do, `state` is everything, and each `change` brings it up to date.
"""

import orjson
from starlette.types import Receive, Scope, Send

from gateway.api.sse import named_event
from gateway.feed.feed import INTERVAL_S, PoolFeed
from gateway.http.disconnect import disconnected, guarded
from gateway.http.errors import RequestRefused
from gateway.http.event_stream import EventStream
from gateway.http.origin.auth import require_admin, require_operator, require_scope
from gateway.keys.api_key import KeyScope
from protocol.config.config import GatewayConfig

_BYTES_PER_S = 128 * 1024
"""What one reader is sent at most, beside the first state."""


class PoolEventStream:
    """Writes its own frames, so it is an ASGI application."""

    def __init__(self, feed: PoolFeed, config: GatewayConfig) -> None:
        self._feed = feed
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the state of the pool until the client or the gateway leaves."""
        if scope["key"]:
            require_scope(scope, KeyScope.METRICS)
        else:
            require_admin(scope)  # without keys: everybody but pages of other sites
        config = self._config
        limit_s = min(config.limits.send_timeout_s, config.timeout_s)
        events = EventStream(send, config.ping_interval_s, limit_s)
        with self._feed.reading():
            await events.open()
            await events.write(named_event("reader", orjson.dumps(_rights(scope))))
            if scope["method"] != "HEAD":
                work = self._pass_on(events)
                await guarded(work, disconnected(receive), events.keep_alive())
        await events.finish()

    async def _pass_on(self, events: EventStream) -> None:
        seen = None
        while (newest := await self._feed.after(seen)) is not None:
            frame = newest.frame(seen)
            pause_s = len(frame) / _BYTES_PER_S if seen is not None else 0.0
            seen = newest
            await events.write(frame)
            await self._feed.pause(max(INTERVAL_S, pause_s))


def _rights(scope: Scope) -> dict[str, object]:
    """Return what the client may do beside reading."""
    return {
        "key": scope["key"],
        "may_order": not (why := _refusal(scope)),
        "why_not": why,
        "may_load": bool(scope["is_admin"]),
    }


def _refusal(scope: Scope) -> str:
    """Return why the client may not drain or replace workers; empty if it may."""
    try:
        require_operator(scope)
    except RequestRefused as error:
        return str(error)
    return ""
