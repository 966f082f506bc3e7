"""The models that a request leases, given back when the request ends, however it ends."""

from contextlib import ExitStack

from starlette.types import ASGIApp, Receive, Scope, Send

MODEL_LEASES = "model_leases"
"""Key of the scope under which an endpoint finds the stack for its model leases."""


class ModelLeaseMiddleware:
    """Puts a stack into the scope and unwinds it after the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through."""
        with ExitStack() as leases:
            scope[MODEL_LEASES] = leases
            await self._app(scope, receive, send)
