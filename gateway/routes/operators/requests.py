"""GET /admin/requests and /admin/requests/{id}: what runs, what waits, and where it went."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.errors import json_response
from gateway.pool.requests.book import RequestBook
from gateway.pool.requests.record import RequestRecord, state_of
from gateway.pool.requests.views import running_view
from gateway.siblings.siblings import Siblings
from protocol.errors import ErrorCode, InvalidRequest, TaskError

MAX_ROWS = 1000
"""Maximum number of rows that the query may name."""
_ROWS = 100
"""Number of rows if the query names none."""
_AT_ONCE = 50
"""Requests and tasks that are looked at in one turn of the loop, for about a millisecond."""
_FILTERS = ("state", "key", "model")
_LIST, _FIND = "requests", "request"


class RequestEndpoints:
    """Answers for all gateways of this host."""

    def __init__(
        self,
        book: RequestBook,
        places: Callable[[], Mapping[int, int]],
        siblings: Siblings,
    ) -> None:
        """`places` tells the tasks that wait their places in the queue; 1 is next."""
        self._book = book
        self._places = places
        self._siblings = siblings
        siblings.respond(_LIST, self._list_for_sibling)
        siblings.respond(_FIND, self._find_for_sibling)

    async def running(self, request: Request) -> Response:
        """List what is being answered, the oldest first."""
        asked = _read(request.query_params)
        own = self._listed(asked)
        listed, answers = await asyncio.gather(own, self._siblings.ask(_LIST, asked=asked))
        parts = [listed, *(answer for answer in answers.values() if answer)]
        rows = sorted(
            (row for part in parts for row in part["requests"]), key=lambda row: -row["age_s"]
        )
        return json_response(
            {
                "n_running": sum(part["n_running"] for part in parts),
                "n_queued": sum(part["n_queued"] for part in parts),
                "n_silent_gateways": sum(answer is None for answer in answers.values()),
                "requests": rows[: asked["limit"]],
            }
        )

    async def one(self, request: Request) -> Response:
        """Return all requests of an id, the newest first, the latest ended ones included."""
        request_id = request.path_params["id"]
        answers = await self._siblings.ask(_FIND, id=request_id)
        found = await self._found(request_id)
        found += [row for answer in answers.values() if answer for row in answer["requests"]]
        if not found:
            raise TaskError(ErrorCode.NOT_FOUND, f"no request '{request_id}' is remembered")
        return json_response({"requests": found})

    async def _list_for_sibling(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._listed(question["asked"])

    async def _find_for_sibling(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"requests": await self._found(question["id"])}

    async def _found(self, request_id: str) -> list[dict[str, Any]]:
        """Look for all requests of an id, which clients choose: there may be thousands."""
        turns, rows = _Turns(), []
        for row in self._book.find(request_id, time.monotonic()):
            rows.append({"gateway": os.getpid(), **row})
            await turns.after(1 + len(row["tasks"]))
        return rows

    async def _listed(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Look at all requests, a few in each turn of the loop: there may be thousands."""
        n_running = n_queued = 0
        rows: list[dict[str, Any]] = []
        places, now, turns = self._places(), time.monotonic(), _Turns()
        for record in list(self._book.running()):
            states = {state_of(task) for task in record.tasks}
            n_running += bool(states & {"reading", "generating", "sent"})
            n_queued += "queued" in states
            if len(rows) < asked["limit"] and _is_meant(record, states, asked):
                view = running_view(record, now, places)
                rows.append({"gateway": os.getpid(), **view})
            await turns.after(1 + len(record.tasks))
        return {"n_running": n_running, "n_queued": n_queued, "requests": rows}


class _Turns:
    """Lets the loop go on whenever `_AT_ONCE` things have been looked at."""

    def __init__(self) -> None:
        self._n_seen = 0

    async def after(self, n: int) -> None:
        """Note that this many have been looked at."""
        self._n_seen += n
        if self._n_seen >= _AT_ONCE:
            self._n_seen = 0
            await asyncio.sleep(0)


def _is_meant(record: RequestRecord, states: set[str], asked: Mapping[str, Any]) -> bool:
    return (
        asked["state"] in ("", *states)
        and asked["key"] in ("", record.key)
        and asked["model"] in ("", record.model)
    )


def _read(params: Mapping[str, str]) -> dict[str, Any]:
    """Read the parameters of a query; raises `InvalidRequest` that names the one at fault."""
    text = params.get("limit", str(_ROWS))
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ROWS))
    if not is_number or not 1 <= int(text) <= MAX_ROWS:
        message = f"Parameter 'limit': must be from 1 to {MAX_ROWS}"
        raise InvalidRequest(message, param="limit")
    return {"limit": int(text), **{name: params.get(name, "") for name in _FILTERS}}
