"""Requests wait for workers that serve, but have not connected to this gateway yet.

The supervisor reports which workers serve. A gateway that has just started beside others would
answer `Loading model`, although its workers connect within a second.
"""

import asyncio
import logging
from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.fleet.supervisor_link import SupervisorLink
from gateway.http.origin.auth import ADMIN_PREFIX, PUBLIC_PATHS

logger = logging.getLogger(__name__)

_LIMIT_S = 10.0
"""A worker that serves dials a gateway at least once a second; one that has not connected by now
cannot reach it."""
_LOOK_S = 0.02
"""Seconds between two looks, for the moment after the start in which anybody waits."""


class AwaitWorkersMiddleware:
    """Holds requests while a worker of some model serves, but none is connected here."""

    def __init__(
        self, app: ASGIApp, supervisor: SupervisorLink, known: Mapping[str, object]
    ) -> None:
        """`known` has the models that are or were ready here."""
        self._app = app
        self._supervisor = supervisor
        self._known = known
        self._given_up: set[str] = set()
        """Models whose workers did not connect in time; requests no longer wait for them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, after waiting if it must."""
        if self._missing() and _is_held(scope):
            await self._wait()
        await self._app(scope, receive, send)

    def _missing(self) -> frozenset[str]:
        missing = self._supervisor.serving_models - self._known.keys()
        return missing - self._given_up if missing else missing

    async def _wait(self) -> None:
        until = asyncio.get_running_loop().time() + _LIMIT_S
        while missing := self._missing():
            if asyncio.get_running_loop().time() > until:
                self._given_up |= missing
                cause = f"its worker has not connected within {_LIMIT_S:g} s"
                for model in sorted(missing):
                    logger.warning(
                        "model without a worker here",
                        extra={
                            "model": model,
                            "cause": cause,
                            "action": "requests wait for it no longer",
                        },
                    )
            await asyncio.sleep(_LOOK_S)


def _is_held(scope: Scope) -> bool:
    path = scope["path"] if scope["type"] == "http" else "/health"
    return path not in PUBLIC_PATHS and path != "/metrics" and not path.startswith(ADMIN_PREFIX)
