"""`--gateways 2`: two processes on one address and one pool."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.process import wait_for_exit
from tests.e2e.served import Served

pytestmark = pytest.mark.slow

TWO = {"gateways": 2, "metrics": True}


def complete(served: Served) -> int:
    """Ask on a connection of its own; once more if a gateway died with the request."""
    for _ in range(2):
        try:
            body = {"prompt": "Hello", "n_predict": 8}
            return httpx.post(f"{served.url}/completion", json=body, timeout=30).status_code
        except (httpx.RemoteProtocolError, httpx.ReadError):
            continue
    return 0


def total(served: Served, name: str) -> float:
    text = httpx.get(f"{served.url}/metrics", timeout=30).text
    return sum(float(row.split()[-1]) for row in text.splitlines() if row.startswith(f"{name}{{"))


@pytest.fixture(scope="module")
def served(serve_all: Serve) -> Iterator[Served]:
    """A pool of two gateways for tests that leave two; at the end nothing is left behind."""
    pool = serve_all({"count": 2, "fake_step_ms": 10}, gateway=TWO).wait_until_ready()
    yield pool
    pool.signal(signal.SIGTERM)
    assert pool.wait() == 0
    assert pool.survivors() == []


def test_both_serve_and_either_tells_the_sums(served: Served) -> None:
    before, n_lines = total(served, "llamapool_tasks_total"), len(served.lines)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(complete, [served] * 64)) == {200}
    assert {total(served, "llamapool_tasks_total") for _ in range(4)} == {before + 64}
    ended = [line for line in served.lines[n_lines:] if "request done" in line]
    assert {line.split()[2] for line in ended} == {"gateway-0", "gateway-1"}
    served.signal(signal.SIGHUP)
    for name in ("gateway-0", "gateway-1"):
        served.wait_for(f"gateway replaced child={name}")
    assert {total(served, "llamapool_tasks_total") for _ in range(4)} == {before + 64}


def test_one_dies_and_the_other_goes_on(served: Served) -> None:
    killed = served.pid_of("gateway-1")
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(complete, served) for _ in range(64)]
        os.kill(killed, signal.SIGKILL)
        wait_for_exit(killed, 40)
        assert {one.result() for one in asked} == {200}
    served.wait_for("process died child=gateway-1")
    served.wait_for("process ready child=gateway-1")
    assert "process died child=gateway-0" not in served.text


def test_an_answer_is_controlled_through_any_gateway(served: Served) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 200,
        "stream": True,
    }
    with served.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if line.startswith("data: {"))
        chat_id = first.split('"id":"')[1].split('"')[0]
        order = {"id": chat_id, "action": "reasoning_end"}
        said = [
            httpx.post(f"{served.url}/v1/chat/completions/control", json=order).json()["message"]
            for _ in range(12)
        ]
    assert set(said) == {"reasoning control not enabled for this completion"}


def test_gateways_that_cannot_work_end_everything(serve: Serve) -> None:
    served = serve({}, gateway={"gateways": 2, "api_key_file": ["none"]})
    assert served.wait() == 78
    assert served.survivors() == []
