"""A new gateway takes over from a running one: nothing fails, nothing is refused."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.process import marked, python, wait_for_exit
from tests.e2e.served import Served, eventually

pytestmark = pytest.mark.slow

SLOW = {"fake_step_ms": 20}


def reload(served: Served) -> None:
    served.signal(signal.SIGHUP)
    served.wait_for("gateway replaced child=gateway")


@pytest.fixture(scope="module")
def shared(serve_all: Serve) -> Iterator[Served]:
    """Two workers; at the end nothing of them and of many gateways is left behind."""
    served = serve_all({"count": 2, **SLOW}).wait_until_ready()
    yield served
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    assert served.survivors() == []


@pytest.fixture
def kept(shared: Served) -> Served:
    """A pool for all tests that leave it with its configuration; earlier gateways have gone."""
    shared.reconnect()
    assert eventually(lambda: gateways(shared) == [shared.pid_of("gateway")])
    return shared


def test_a_stream_goes_on_at_the_old_gateway_and_new_requests_go_to_the_new_one(
    kept: Served,
) -> None:
    old = kept.pid_of("gateway")
    with kept.stream("a long one", n_predict=150) as stream:
        first = next(stream)
        reload(kept)
        assert kept.pid_of("gateway") != old
        with httpx.Client(base_url=kept.url, timeout=20) as client:
            answer = client.post("/completion", json={"prompt": "Hello", "n_predict": 8})
        assert len(answer.json()["content"]) == 8
        events = [first, *stream]
    assert events[-1]["stop"] and events[-1]["tokens_predicted"] == 150
    assert kept.complete("again").status_code == 200  # on the connection of before
    kept.client.close()
    wait_for_exit(old, 40)
    assert gateways(kept) == [kept.pid_of("gateway")]


@pytest.mark.parametrize("keeps_alive", [True, False])
def test_reloads_under_load_fail_nothing(kept: Served, *, keeps_alive: bool) -> None:
    over, n_lines = threading.Event(), len(kept.lines)

    def ask(_: int) -> list[int]:
        headers = {} if keeps_alive else {"Connection": "close"}
        with httpx.Client(base_url=kept.url, timeout=30, headers=headers) as client:
            found = []
            while not over.is_set():
                answer = client.post("/completion", json={"prompt": "Hello", "n_predict": 8})
                found.append(answer.status_code)
            return found

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, n) for n in range(4)]
        try:
            for _ in range(2):
                reload(kept)
        finally:
            over.set()
        statuses = [status for one in asked for status in one.result()]
    assert set(statuses) == {200}
    assert len(statuses) > 8, "each client asks again while gateways are replaced"
    text = "\n".join(kept.lines[n_lines:])
    assert "worker lost" not in text.replace('cause="said bye', "")
    assert "unexpected" not in text


def test_the_command_reloads_the_pool_of_a_runtime_directory(kept: Served, tmp_path: Path) -> None:
    (pid,) = gateways(kept)
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    folder = Path(words[words.index("--config") + 1]).parent
    command = python("-m", "worker.admin", "reload", "--runtime-dir")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == f"process {kept.popen.pid} reads its configuration again\n"
    kept.wait_for("gateway replaced child=gateway")
    gone = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert gone.returncode == 69 and "no pool runs in" in gone.stderr


def test_the_new_gateway_has_the_new_keys(serve: Serve, tmp_path: Path) -> None:
    served = serve(SLOW, gateway={"api_key": ["one"]}).wait_until_ready()
    config = next(tmp_path.glob("pool*.toml"))
    config.write_text(config.read_text().replace("one", "two"))
    reload(served)

    def status(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
        return httpx.get(f"{served.url}/v1/models", headers=headers).status_code

    # The old one may have taken a connection or two before it was told to leave.
    assert eventually(lambda: (status("two"), status("one")) == (200, 401))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"[gateway]": "[log]\nverbosity = 5\n[gateway]"}, "log.verbosity"),
        ({"port = 0": "port = 1"}, "gateway.port"),
        ({"port = 0": 'port = 0\nhost = "127.0.0.2"'}, "gateway.host"),
        ({"port = 0": "port = 0\ngateways = 2"}, "gateway.gateways"),
        ({"port = 0": 'port = 0\nbind = ["ipc://other.sock"]'}, "gateway.bind"),
        ({"port = 0": 'port = 0\nmodels_dir = "."'}, "gateway.models_dir"),
        ({"[gateway]": 'runtime_dir = "other"\n[gateway]'}, "runtime_dir"),
    ],
)
def test_what_only_a_restart_changes_is_named_and_no_worker_is_replaced(
    kept: Served, changes: dict[str, str], key: str
) -> None:
    n_lines = len(kept.lines)

    def lines() -> str:
        return "\n".join(kept.lines[n_lines:])

    text = changed = kept.config.read_text()
    for old, new in changes.items():
        changed = changed.replace(old, new)
    kept.config.write_text(changed)
    kept.signal(signal.SIGHUP)
    kept.wait_for(rf"settings not reloaded keys={key} hint=")
    kept.wait_for("gateway replaced child=gateway")
    assert eventually(lambda: "worker has changed" in lines() or "not read again" in lines())
    assert "rolling change" not in lines()
    kept.config.write_text(text)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("fake_step_ms", "fake_stepms"), "configuration not reloaded cause=.*fake_stepms"),
        (
            ("fake_step_ms", 'lora = ["none"]\nfake_step_ms'),
            "configuration not reloaded cause=.*none",
        ),
        (("port = 0", 'port = 0\napi_key_file = ["none"]'), "gateway not replaced .*api_key_file"),
        (("port = 0", 'port = 0\nssl_key_file = "x"'), "gateway not replaced .*ssl_key_file"),
    ],
)
def test_a_configuration_that_cannot_work_leaves_the_old_gateway(
    kept: Served, change: tuple[str, str], line: str
) -> None:
    old = kept.pid_of("gateway")
    text = kept.config.read_text()
    kept.config.write_text(text.replace(*change))
    kept.signal(signal.SIGHUP)
    kept.wait_for(line)
    assert kept.complete("Hello").status_code == 200
    assert kept.pid_of("gateway") == old
    kept.config.write_text(text)
    reload(kept)
    assert kept.pid_of("gateway") != old
    assert kept.complete("Hello").status_code == 200


def test_a_gateway_that_dies_while_it_takes_over_leaves_the_old_one(kept: Served) -> None:
    with kept.stream("a long one", n_predict=150) as stream:
        next(stream)
        kept.signal(signal.SIGHUP)
        kept.wait_for("replacing gateway")
        assert eventually(lambda: len(gateways(kept)) == 2)
        (new,) = set(gateways(kept)) - {kept.pid_of("gateway")}
        os.kill(new, signal.SIGKILL)
        kept.wait_for("gateway not replaced child=gateway")
        assert kept.complete("Hello").status_code == 200
        assert [*stream][-1]["tokens_predicted"] == 150
    reload(kept)
    assert kept.complete("Hello").status_code == 200


def gateways(served: Served) -> list[int]:
    """Find the processes of the pool that are gateways."""
    found = []
    for pid in marked(served.mark):
        with suppress(OSError):  # it has ended since it was listed
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"gateway" in words:
                found.append(pid)
    return found
