"""Headers that tell a client what is left of its key's limits, under OpenAI's names."""

import math

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.keys.api_key import KeyLimits, key_of
from gateway.pool.tenants.allowances import Allowances

LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{name}"
    for name in ("requests", "tokens", "tokens-day")
    for what in ("limit", "remaining", "reset")
)


class RateLimitMiddleware:
    """Adds `x-ratelimit-*` headers to every answer to a key that has limits."""

    def __init__(self, app: ASGIApp, allowances: Allowances) -> None:
        self._app = app
        self._allowances = allowances

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        key = key_of(scope) if scope["type"] == "http" else None
        if key is None or not (key.limits.requests_per_minute or key.limits.counts_tokens):
            await self._app(scope, receive, send)
            return

        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = self._headers(key.name, key.limits)
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        await self._app(scope, receive, add_headers)

    def _headers(self, tenant: str, limits: KeyLimits) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for name, left in self._allowances.remaining(tenant, limits).items():
            values = (str(left.limit), str(left.remaining), duration(left.reset_s))
            for what, value in zip(("limit", "remaining", "reset"), values, strict=True):
                found.append((f"x-ratelimit-{what}-{name}".encode(), value.encode()))
        return found


def duration(seconds: float) -> str:
    """Write a time as OpenAI does: `20ms`, `1.5s`, `6m0s`, `2h0m10s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{math.ceil(seconds * 10) / 10:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
