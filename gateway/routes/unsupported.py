"""The endpoints of llama-server that are not here yet: each answers that it is not supported."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.unsupported import REFUSED_ENDPOINTS, refuse_endpoint
from gateway.http.errors import json_response

_DISABLED = ("/tools", "/cors-proxy")


def unsupported_routes() -> list[Route]:
    """Return a route for each row of the table, and llama-server's 403 for what is off there."""
    refused = [
        Route(path, _refusal(path, what), methods=list(methods))
        for path, (methods, what) in REFUSED_ENDPOINTS.items()
    ]
    return refused + [Route(path, _disabled, methods=["GET", "POST"]) for path in _DISABLED]


def _refusal(path: str, what: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise refuse_endpoint(path, what)

    return refuse


async def _disabled(request: Request) -> Response:
    error = {"message": "this feature is disabled", "type": "feature_disabled"}
    return json_response({"error": error}, 403)
