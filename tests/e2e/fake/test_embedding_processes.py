"""Embeddings of a served pool: beside streams, and over the death of a worker."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.served import eventually

pytestmark = pytest.mark.slow


def test_streams_flow_while_hundreds_of_inputs_are_embedded(serve: Serve) -> None:
    worker = {"embeddings": True, "fake_step_ms": 2, "n_ubatch": 64, "n_ctx": 32768}
    served = serve(worker).wait_until_ready()
    body = {"input": ["x" * 40] * 300}
    with ThreadPoolExecutor() as threads, served.stream("hi", n_predict=8000) as events:
        next(events)
        asked = threads.submit(lambda: served.client.post("/v1/embeddings", json=body, timeout=60))
        beside = 0
        while not asked.done():
            next(events)  # were the stream to wait for the embeddings, there would be a few
            beside += 1
        response = asked.result()
    assert response.status_code == 200
    assert len(response.json()["data"]) == 300
    assert beside > 20


def test_embeddings_move_to_another_worker_when_theirs_dies(serve: Serve) -> None:
    served = serve({"embeddings": True, "fake_step_ms": 20, "n_ubatch": 64, "count": 2})
    served.wait_until_ready()
    body = {"input": ["x" * 60] * 40}
    with ThreadPoolExecutor() as threads:
        asked = [
            threads.submit(lambda: served.client.post("/v1/embeddings", json=body, timeout=60))
            for _ in range(2)
        ]
        assert eventually(lambda: all(future.running() for future in asked))
        os.kill(served.pid_of("fake-1"), signal.SIGKILL)
        responses = [future.result() for future in asked]
    assert [response.status_code for response in responses] == [200, 200]
