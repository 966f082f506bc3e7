"""Workers out of service and rolling changes, with real processes over the fake backend."""

import contextlib
import json
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner

from tests.e2e.process import Process, python
from tests.e2e.served import Served, eventually
from worker.admin import commands

pytestmark = pytest.mark.slow

HEAD = """
[gateway]
port = 0
heartbeat_s = 0.2
[rollout]
probation_s = 0.2
"""
WORKERS = """
[[worker]]
name = "w"
alias = "fake"
backend = "fake"
n_slots = 4
count = 2
fake_step_ms = 10
"""


class Pool:
    """A served pool, its configuration file, and the commands that administer it."""

    def __init__(self, folder: Path, text: str) -> None:
        self.runtime = folder / "run"
        self.path = folder / "pool.toml"
        self.write(text)
        self.served = Served(python("-m", "worker.cli", "serve", "--config", str(self.path)))
        self.served.wait_until_ready()

    def write(self, text: str) -> None:
        self.path.write_text(f'runtime_dir = "{self.runtime}"\n{text}')

    def command(self, name: str, *args: str) -> tuple[int, str]:
        """Run a command of an admin on this host, in this process; returns exit code and output."""
        command: click.Command = getattr(commands, name)
        argv = [*args, "--runtime-dir", str(self.runtime)]
        done = CliRunner().invoke(command, argv, prog_name=name, catch_exceptions=False)
        return done.exit_code, done.output

    def status(self) -> dict[str, Any]:
        code, text = self.command("status", "--json")
        assert code == 0, text
        found: dict[str, Any] = json.loads(text)
        return found

    def workers(self) -> dict[str, str]:
        return {worker["name"]: worker["state"] for worker in self.status()["workers"]}


@contextlib.contextmanager
def running() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="lp-") as folder:  # short, for the sockets in it
        opened = Pool(Path(folder), HEAD + WORKERS)
        try:
            yield opened
        finally:
            opened.served.close()


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool that the test may change."""
    with running() as opened:
        yield opened


@pytest.fixture(scope="module")
def kept() -> Iterator[Pool]:
    """A pool of `w-1` and `w-2` for all tests that leave it as it was."""
    with running() as opened:
        yield opened
        assert opened.workers() == {"w-1": "ready", "w-2": "ready"}


class Load:
    """Clients that stream completions until they are told to stop."""

    def __init__(self, url: str, n_clients: int) -> None:
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(n_clients)]
        self.failures: list[str] = []
        self.texts: list[str] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        body = {"prompt": "one two three", "n_predict": 40, "temperature": 0, "stream": True}
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self._stop.is_set():
                try:
                    with client.stream("POST", "/completion", json=body) as response:
                        lines = [line for line in response.iter_lines() if line]
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    continue
                self._judge(response.status_code, lines)

    def _judge(self, status: int, lines: list[str]) -> None:
        found = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        if status != 200 or not found or not found[-1].get("stop"):
            self.failures.append(f"{status} {lines[-1:]}")
        self.texts.append("".join(event.get("content", "") for event in found))


def test_all_workers_are_replaced_under_load_and_no_request_notices(pool: Pool) -> None:
    with Load(pool.served.url, 6) as load:
        assert eventually(lambda: len(load.texts) >= 6)
        code, text = pool.command("rollout", "--golden", "Hello", "--wait")
        assert code == 0, text
        n_before = len(load.texts)
        assert eventually(lambda: len(load.texts) >= n_before + 6)
    assert load.failures == []
    assert len(set(load.texts)) == 1
    assert pool.workers() == {"w-1~2": "ready", "w-2~2": "ready"}
    rollout = pool.status()["rollout"]
    assert (rollout["state"], rollout["n_done"]) == ("done", 2)
    assert (rollout["least_serving"], rollout["n_before"]) == (2, 2)
    assert pool.command("drain", "w-1", "--wait") == (0, "w-1 has left\n")
    assert pool.workers() == {"w-1~2": "drained", "w-2~2": "ready"}


def test_without_room_one_worker_is_missing_at_a_time(pool: Pool) -> None:
    with Load(pool.served.url, 4) as load:
        code, text = pool.command("rollout", "--surge", "off", "--wait")
        assert code == 0, text
    assert load.failures == []
    assert pool.status()["rollout"]["least_serving"] == 1


def test_a_wrong_golden_answer_goes_back_by_itself(kept: Pool) -> None:
    golden = ("--golden", "Hello", "--golden-answer", "no model says this")
    code, text = kept.command("rollout", *golden, "-c", "2048", "--wait")
    assert code == 1
    assert "w-1~2 gives another answer to a golden prompt" in text
    assert kept.workers() == {"w-1": "ready", "w-2": "ready"}
    kept.served.wait_for("rolling change failed .*golden prompt")
    assert kept.served.complete("x").status_code == 200


def test_new_options_reach_the_workers_and_stay_for_the_next_change(pool: Pool) -> None:
    code, text = pool.command("rollout", "-np", "2", "--wait")
    assert code == 0, text
    assert [worker["n_slots"] for worker in pool.status()["workers"]] == [2, 2]
    assert pool.command("rollout", "--wait")[0] == 0
    assert [worker["n_slots"] for worker in pool.status()["workers"]] == [2, 2]
    assert set(pool.workers()) == {"w-1", "w-2"}


def test_options_that_cannot_be_are_refused_before_anything_changes(kept: Pool) -> None:
    before = kept.status()["rollout"]
    code, text = kept.command("rollout", "-np", "0")
    assert code == 1
    assert "n_slots" in text
    code, text = kept.command("rollout", "-ctk", "q3")
    assert code == 2
    assert kept.status()["rollout"] == before
    assert set(kept.workers()) == {"w-1", "w-2"}


def test_a_drained_worker_stays_away_until_it_is_undrained(kept: Pool) -> None:
    with Load(kept.served.url, 4) as load:
        code, text = kept.command("drain", "w-1", "--wait", "--timeout", "30")
        assert code == 0, text
    assert load.failures == []
    assert kept.workers() == {"w-1": "drained", "w-2": "ready"}
    code, text = kept.command("drain", "w-2")
    assert code == 1
    assert "is the only worker" in text and "--force" in text
    assert kept.command("undrain", "w-1") == (0, "w-1 starts again\n")
    assert eventually(lambda: kept.workers() == {"w-1": "ready", "w-2": "ready"})
    code, text = kept.command("drain", "nobody")
    assert (code, "no worker is named 'nobody'" in text) == (1, True)


def test_sighup_changes_only_what_changed(pool: Pool) -> None:
    pids = {worker["name"]: worker["pid"] for worker in pool.status()["workers"]}
    more = WORKERS.replace('"w"', '"x"').replace("count = 2", "count = 1")
    pool.write(HEAD + WORKERS + more)
    pool.served.signal(signal.SIGHUP)
    assert eventually(lambda: pool.workers().get("x") == "ready")
    assert eventually(lambda: pool.status()["rollout"]["state"] == "done")
    found = {worker["name"]: worker["pid"] for worker in pool.status()["workers"]}
    assert {name: found[name] for name in pids} == pids
    pool.write(HEAD + WORKERS.replace("n_slots = 4", "n_slots = 3"))
    pool.served.signal(signal.SIGHUP)
    assert eventually(lambda: set(pool.workers()) == {"w-1~2", "w-2~2"})


def test_sighup_without_a_change_begins_no_rolling_change(kept: Pool) -> None:
    before = kept.status()["rollout"]
    kept.served.signal(signal.SIGHUP)
    kept.served.wait_for("no worker has changed")
    assert eventually(lambda: kept.workers() == {"w-1": "ready", "w-2": "ready"})
    assert kept.status()["rollout"] == before


def test_a_broken_configuration_leaves_all_as_it_is(kept: Pool) -> None:
    kept.write("[gatway]\n")
    kept.served.signal(signal.SIGHUP)
    kept.served.wait_for("configuration not reloaded .*gatway")
    assert kept.workers() == {"w-1": "ready", "w-2": "ready"}
    assert kept.served.complete("x").status_code == 200
    kept.write(HEAD + WORKERS)
    kept.served.signal(signal.SIGHUP)
    kept.served.wait_for("no worker has changed")
    assert kept.served.text.count("gatway") == 1


def test_without_keys_the_admin_api_is_closed_to_tcp(kept: Pool) -> None:
    for path in ("/admin/status", "/admin/workers", "/admin/rollout", "/admin/quarantine"):
        answer = kept.served.client.get(path)
        assert answer.status_code == 403, path
        assert "admin.sock" in answer.json()["error"]["message"]
    assert kept.served.client.post("/admin/rollout", json={}).status_code == 403
    assert (kept.runtime / "admin.sock").stat().st_mode & 0o777 == 0o600


def test_a_pool_that_does_not_run_is_a_clear_error(tmp_path: Path) -> None:
    for args in (("--runtime-dir", str(tmp_path)), ("--url", "http://127.0.0.1:1")):
        process = Process(python("-m", "worker.admin", "status", *args))
        assert process.wait() == 69
        assert "llamapool: no pool" in process.text
        process.close()
