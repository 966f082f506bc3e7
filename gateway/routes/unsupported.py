"""The endpoints of llama-server that are not here yet: each says so."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.unsupported import ENDPOINTS, refuse_endpoint
from gateway.http.errors import json_response

_DISABLED = ("/tools", "/cors-proxy")


def unsupported_routes() -> list[Route]:
    """Return a route for each row of the table, and llama-server's 403 for what is off there."""
    refused = [
        Route(path, _UnsupportedEndpoint(path, what), methods=list(methods))
        for path, (methods, what) in ENDPOINTS.items()
    ]
    return refused + [Route(path, _disabled, methods=["GET", "POST"]) for path in _DISABLED]


class _UnsupportedEndpoint:
    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise refuse_endpoint(self._path, self._what)


async def _disabled(request: Request) -> Response:
    error = {"message": "this feature is disabled", "type": "feature_disabled"}
    return json_response({"error": error}, 403)
