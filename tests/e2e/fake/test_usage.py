"""Usage and request ids over real processes, one of which is killed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.usage.database import DATABASE, ask
from tests.e2e.conftest import Serve
from tests.e2e.served import eventually, serving

pytestmark = pytest.mark.slow


def test_the_usage_of_all_gateways_outlives_them(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    gateway = {"gateways": 2, "usage_dir": str(folder), "api_key": ["root"]}
    served = serve({"fake_step_ms": 2}, gateway=gateway).wait_until_ready()
    headers = {"Authorization": "Bearer root"}
    told = []
    for number in range(12):
        served.reconnect()  # another gateway may take the next one
        body = {"prompt": f"Hello {number}", "n_predict": 8, "ignore_eos": True}
        answer = served.client.post("/completion", json=body, headers=headers)
        told.append(answer.json())

    def total() -> dict[str, int]:
        found: dict[str, int] = served.client.get("/admin/usage", headers=headers).json()["total"]
        return found

    assert eventually(lambda: total()["requests"] == 12)
    assert total()["completion_tokens"] == sum(one["tokens_predicted"] for one in told) == 96
    assert total()["prompt_tokens"] == sum(one["tokens_evaluated"] for one in told)
    served.close()
    assert ask(folder, (), {})[()].completion == 96
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_id_stands_in_the_lines_of_all_processes(tmp_path: Path) -> None:
    config = tmp_path / "pool.toml"
    config.write_text('[gateway]\nport = 0\n[[worker]]\nbackend = "fake"\n[log]\nverbosity = 5\n')
    with serving("--config", str(config)) as served:
        body = {"prompt": "Hello", "n_predict": 4}
        answer = served.client.post("/completion", json=body, headers={"X-Request-Id": "my-1"})
        assert answer.headers["x-request-id"] == "my-1"
        served.wait_for(r"task taken task=\d+ attempt=0 request_id=my-1")
        served.wait_for("request done request_id=my-1")
