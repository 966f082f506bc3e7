"""Lists of requests that are long: other work of the gateway goes on between their rows."""

import asyncio
import json

import pytest
from starlette.requests import Request
from starlette.responses import Response

from gateway.pool.requests.book import RequestBook
from gateway.routes.operators.requests import RequestEndpoints
from gateway.siblings.siblings import Siblings

N_REQUESTS = 600


@pytest.mark.parametrize(("request_id", "n_rows"), [("", 100), ("same", N_REQUESTS)])
async def test_a_long_list_lets_the_loop_turn(request_id: str, n_rows: int) -> None:
    book = RequestBook()
    for _ in range(N_REQUESTS):
        book.begin("same", "POST", "/completion", 0.0).model = "m"
    endpoints = RequestEndpoints(book, dict, Siblings(""))
    n_turns = 0

    async def ask() -> Response:
        scope = {"type": "http", "path_params": {"id": request_id}, "query_string": b""}
        endpoint = endpoints.one if request_id else endpoints.running
        return await endpoint(Request(scope))

    asked = asyncio.create_task(ask())
    while not asked.done():
        await asyncio.sleep(0)
        n_turns += 1
    assert len(json.loads(bytes(asked.result().body))["requests"]) == n_rows
    assert n_turns > N_REQUESTS / 60
