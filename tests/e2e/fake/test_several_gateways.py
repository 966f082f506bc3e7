"""Two gateways on four workers: real processes, the fake backend."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.process import Process, python
from tests.e2e.served import eventually

pytestmark = pytest.mark.slow

N_WORKERS, N_SLOTS = 4, 2
CONFIG = f"""
[[worker]]
name = "w"
alias = "fake"
backend = "fake"
count = {N_WORKERS}
n_slots = {N_SLOTS}
n_prefetch = 1
n_ctx = 4096
fake_step_ms = 20

[gateway]
slots = true
"""


class GatewayProcess:
    """A gateway of the pair, and its clients."""

    def __init__(self, folder: Path, number: int) -> None:
        self.endpoint = f"ipc://{folder}/gateway-{number}.sock"
        bound = ("--port", "0", "--bind", self.endpoint)
        self._argv = python("-m", "gateway", "--config", str(folder / "pool.toml"), *bound)
        self.start()

    def start(self) -> None:
        """Run the process, also once more."""
        self.process = Process(self._argv)
        url = self.process.wait_for(r"listening url=(\S+)")[1]
        self.client = httpx.Client(base_url=url, timeout=30)

    def restore(self) -> None:
        """Run it again if it was killed."""
        if self.process.popen.poll() is not None:
            self.close()
            self.start()

    def get(self, path: str) -> Any:
        """Ask for JSON; empty while nobody listens."""
        try:
            return self.client.get(path).json()
        except httpx.TransportError:
            return {}

    def complete(self, **body: Any) -> dict[str, Any]:
        """Ask for a completion."""
        response = self.client.post("/completion", json={"prompt": "Hello", **body})
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def busy(self) -> set[int]:
        """Return the ids of the slots that run a task."""
        return {slot["id"] for slot in self.get("/slots") if slot["is_processing"]}

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.process.close()


Pair = tuple[GatewayProcess, GatewayProcess]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Run two gateways and four workers that dial both."""
    folder = tmp_path_factory.mktemp("pair")
    config = folder / "pool.toml"
    config.write_text(CONFIG)
    with ExitStack() as stack:
        pair = GatewayProcess(folder, 0), GatewayProcess(folder, 1)
        for gateway in pair:
            stack.callback(gateway.close)
        dialled = [word for gateway in pair for word in ("--connect", gateway.endpoint)]
        for number in range(1, N_WORKERS + 1):
            named = ("--name", f"w-{number}", *dialled)
            worker = Process(python("-m", "worker.cli", "worker", "--config", str(config), *named))
            stack.callback(worker.close)
        for gateway in pair:
            assert eventually(partial(has_all, gateway), 30), gateway.process.text
        yield pair


@pytest.fixture
def gateways(shared: Pair) -> Pair:
    """The pair, with another gateway for one that was killed, once nothing runs on it any more."""
    for gateway in shared:
        gateway.restore()
    assert eventually(lambda: all(map(has_all, shared)), 30)
    return shared


def has_all(gateway: GatewayProcess) -> bool:
    """Return whether a gateway knows of every slot, and of none that is busy."""
    return bool(gateway.get("/health").get("slots_idle") == N_WORKERS * N_SLOTS)


def at_once(n: int, gateway: GatewayProcess, n_predict: int) -> list[dict[str, Any]]:
    """Ask so many times at once; return all answers."""
    with ThreadPoolExecutor(n) as pool:
        asked = [pool.submit(gateway.complete, n_predict=n_predict) for _ in range(n)]
        return [answer.result(60) for answer in asked]


def test_either_gateway_can_use_every_slot(gateways: Pair) -> None:
    for gateway in gateways:
        answers = at_once(N_WORKERS * N_SLOTS, gateway, 60)
        assert Counter(answer["id_slot"] for answer in answers) == dict.fromkeys(range(8), 1)
        assert eventually(lambda: all(map(has_all, gateways)))


def test_a_gateway_shows_the_tasks_of_the_other(gateways: Pair) -> None:
    first, other = gateways
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(first.complete, n_predict=100)
        assert eventually(lambda: other.get("/health")["slots_processing"] == 1)
        assert eventually(lambda: len(other.busy()) == 1)
        assert other.busy() == first.busy() == {running.result(30)["id_slot"]}


def test_both_serve_more_than_fits_and_nobody_starves(gateways: Pair) -> None:
    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(at_once, 24, gateway, 20) for gateway in gateways]
        answers = [answer for asked in both for answer in asked.result(60)]
    assert len(answers) == 48 and all(answer["tokens_predicted"] == 20 for answer in answers)
    # 48 tasks of 0.4 s on 8 slots.
    assert time.monotonic() - start < 20
    assert eventually(lambda: all(map(has_all, gateways)))


def test_a_killed_gateway_leaves_its_credits_to_the_other(gateways: Pair) -> None:
    first, other = gateways
    with ThreadPoolExecutor(16) as pool:
        lost = [pool.submit(first.complete, n_predict=2000) for _ in range(8)]
        assert eventually(lambda: len(first.busy()) == 8)
        kept = [pool.submit(other.complete, n_predict=60) for _ in range(8)]
        os.kill(first.process.popen.pid, signal.SIGKILL)
        assert [answer.result(30)["tokens_predicted"] for answer in kept] == [60] * 8
        for broken in lost:
            with pytest.raises(httpx.TransportError):
                broken.result(30)
    assert eventually(lambda: has_all(other))
    answers = at_once(8, other, 60)
    assert len({answer["id_slot"] for answer in answers}) == 8


def test_settings_are_the_same_at_all_gateways(gateways: Pair) -> None:
    first, other = gateways
    first.complete(n_predict=1, system_prompt=system("Brief"))
    assert eventually(lambda: name_at(other) == "Brief")
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(gateway.complete, n_predict=1, system_prompt=system(f"Gateway {n}"))
            for n, gateway in enumerate(gateways)
        ]
        for answer in asked:
            answer.result(30)
    assert eventually(lambda: name_at(first) == name_at(other) != "Brief")
    settled = name_at(first)
    os.kill(first.process.popen.pid, signal.SIGKILL)
    first.process.wait()
    first.restore()
    assert eventually(lambda: has_all(first), 30)
    assert eventually(lambda: name_at(first) == settled), "it learns them from the workers"


def name_at(gateway: GatewayProcess) -> str:
    """Return the assistant's name of the system prompt that a gateway shows."""
    shown = gateway.get("/props")
    return str(shown.get("assistant_name", ""))


def system(name: str) -> dict[str, str]:
    """Return a system prompt under this name."""
    return {"prompt": f"I am {name}.", "assistant_name": name}
