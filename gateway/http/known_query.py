"""Refuses query parameters that an endpoint does not have, and those that come twice.

For the endpoints that no other server has: there a typo must not widen what is asked or done.
Endpoints of other servers' APIs ignore what they do not know, as those servers do.
"""

from collections import Counter
from collections.abc import Collection
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.errors import InvalidRequest


class KnownQuery:
    """An endpoint with these query parameters and no others."""

    def __init__(self, endpoint: ASGIApp, names: Collection[str]) -> None:
        self._endpoint = endpoint
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises `InvalidRequest` that names the parameter at fault."""
        query = scope["query_string"].decode("latin-1")
        found = Counter(name for name, _ in parse_qsl(query, keep_blank_values=True))
        for name, n in found.items():
            if name not in self._names:
                raise InvalidRequest(f"Parameter '{name}' is unknown", param=name)
            if n > 1:
                raise InvalidRequest(f"Parameter '{name}': must be given once", param=name)
        await self._endpoint(scope, receive, send)
