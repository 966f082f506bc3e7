"""A real pool that sleeps: memory comes back, answers stay, a failed awakening is repeated."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Serve
from tests.e2e.served import Served, eventually
from tests.models.shallow import shallow_path

SETTINGS: dict[str, Any] = {"backend": "llama", "n_slots": 1, "n_ctx": 2048, "sleep_idle_s": 0.3}
PROMPT = "The capital of France is"


def is_sleeping(served: Served) -> bool:
    return bool(served.client.get("/props").json()["is_sleeping"])


def resident_mib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


@pytest.mark.model
@pytest.mark.cpu
def test_a_sleeping_worker_gives_its_memory_back_and_answers_as_before(serve: Serve) -> None:
    served = serve({"name": "a", **SETTINGS}).wait_until_ready()
    pid = served.pid_of("a")
    texts, awake, asleep = [], 0, []
    for _ in range(3):
        texts.append(served.complete(PROMPT, temperature=0).json()["content"])
        awake = max(awake, resident_mib(pid))
        assert eventually(lambda: is_sleeping(served))
        served.wait_for(r"worker\.process asleep")
        asleep.append(resident_mib(pid))
    assert texts[0].strip() and texts == texts[:1] * 3
    assert max(asleep) < awake - 100  # weights of 98 MB, 45 MB of cache
    assert served.pid_of("a") == pid
    served.signal(signal.SIGTERM)
    assert served.wait() == 0


@pytest.mark.model
def test_a_model_that_is_gone_ends_the_worker_which_is_tried_again(
    serve: Serve, tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.symlink_to(shallow_path())
    served = serve({"name": "a", "model": str(model), **SETTINGS}).wait_until_ready()
    assert eventually(lambda: is_sleeping(served))
    model.unlink()
    response = served.complete(PROMPT)
    assert response.status_code == 503
    message = "The model could not be loaded again after sleeping"
    assert response.json()["error"]["message"] == message
    served.wait_for(r"process died child=a cause=.* retry_s=0\.5")
    served.wait_for("process died child=a cause=.*does not exist")
    model.symlink_to(shallow_path())
    assert served.complete(PROMPT).status_code == 200
