"""Embeddings of a served pool: beside streams, and over the death of a worker."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.served import Served, eventually

pytestmark = pytest.mark.slow


WORKER = {"embeddings": True, "n_ubatch": 64}


@pytest.fixture(scope="module")
def served(serve_all: Serve) -> Served:
    """A quick worker, and two slow ones of another model."""
    quick = WORKER | {"alias": "quick", "fake_step_ms": 2, "n_ctx": 32768}
    slow = WORKER | {"alias": "slow", "fake_step_ms": 20, "count": 2}
    return serve_all(quick, slow).wait_until_ready()


def embedded(served: Served, model: str, texts: list[str]) -> httpx.Response:
    body = {"model": model, "input": texts}
    return served.client.post("/v1/embeddings", json=body, timeout=60)


def test_streams_flow_while_hundreds_of_inputs_are_embedded(served: Served) -> None:
    stream = served.stream("hi", model="quick", n_predict=8000)
    with ThreadPoolExecutor() as threads, stream as events:
        next(events)
        asked = threads.submit(embedded, served, "quick", ["x" * 40] * 300)
        beside = 0
        while not asked.done():
            next(events)  # were the stream to wait for the embeddings, there would be a few
            beside += 1
        response = asked.result()
    assert response.status_code == 200
    assert len(response.json()["data"]) == 300
    assert beside > 20


def test_embeddings_move_to_another_worker_when_theirs_dies(served: Served) -> None:
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(embedded, served, "slow", ["x" * 60] * 40) for _ in range(2)]
        assert eventually(lambda: all(future.running() for future in asked))
        os.kill(served.pid_of("slow-1"), signal.SIGKILL)
        responses = [future.result() for future in asked]
    assert [response.status_code for response in responses] == [200, 200]
