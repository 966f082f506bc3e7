"""GET and DELETE /admin/quarantine: requests that are refused because workers died with them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.pool.pool import Pool
from gateway.siblings.siblings import Siblings
from protocol.errors import ErrorCode, InvalidRequest, TaskError

_QUESTION = "release"


class QuarantineEndpoints:
    """Lists the requests that this gateway refuses; lets them in again at all gateways here."""

    def __init__(self, pool: Pool, siblings: Siblings) -> None:
        self._pool = pool
        self._siblings = siblings
        siblings.respond(_QUESTION, self._answer)

    async def show(self, _request: Request) -> Response:
        """List the requests that are refused."""
        views = self._pool.status.quarantined()
        return json_response({"fingerprints": [asdict(view) for view in views]})

    async def release(self, request: Request) -> Response:
        """Let one request in again, or all; raises `TaskError` if none is refused."""
        fingerprint = request.query_params.get("fingerprint", "")
        if "fingerprint" in request.query_params and not fingerprint:
            raise InvalidRequest("Parameter 'fingerprint': must not be empty", param="fingerprint")
        counts = [self._pool.dispatcher.quarantine.release(fingerprint)]
        answers = await self._siblings.ask(_QUESTION, fingerprint=fingerprint)
        counts += [answer["n_released"] for answer in answers.values() if answer]
        if not any(counts):
            what = "request of this fingerprint" if fingerprint else "request"
            message = f"no {what} is refused: GET /admin/quarantine lists them"
            raise TaskError(ErrorCode.NOT_FOUND, message)
        return json_response({"n_released": max(counts)})

    async def _answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"n_released": self._pool.dispatcher.quarantine.release(question["fingerprint"])}
