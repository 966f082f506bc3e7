"""The package under a real systemd: credentials, sandbox, sockets, reload, state, removal."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.private_systemd import PrivateSystemd, why_not

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

POOL = """
[gateway]
metrics = true
[[worker]]
name = "chat-1"
backend = "fake"
n_slots = 2
fake_step_ms = 20
devices = "3"
"""


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory, deb: Path) -> Iterator[PrivateSystemd]:
    if reason := why_not():
        pytest.skip(f"no private systemd: {reason}")
    folder = tmp_path_factory.mktemp("machine")
    shutil.copy(deb, folder / "llamapool.deb")
    machine = PrivateSystemd(folder)
    try:
        machine.start()
        machine.run("systemctl", "start", "systemd-journald.socket")
        yield machine
    finally:
        machine.close()


@pytest.fixture
def machine(booted: PrivateSystemd) -> Iterator[PrivateSystemd]:
    """Install the package if it is not there; nothing of it runs before or after a test."""
    if not booted.path("/usr/lib/llamapool").exists():
        booted.run("dpkg", "-i", "/tmp/host/llamapool.deb")
    booted.path("/etc/llamapool/pool.toml").write_text(POOL)
    yield booted
    booted.run("systemctl", "stop", "client-*", "llamapool*", check=False)
    booted.run("systemctl", "reset-failed", check=False)


def until(found: Callable[[], object]) -> None:
    """Return once it is so; the test's own limit ends it otherwise."""
    while not found():
        time.sleep(0.05)


def key_of(machine: PrivateSystemd) -> str:
    return machine.path("/etc/llamapool/keys").read_text().split()[0]


def ask(machine: PrivateSystemd, path: str, key: str = "", **body: object) -> tuple[int, str]:
    """Send a request from inside with curl."""
    argv = ["curl", "-sS", "-w", "\n%{http_code}", f"http://127.0.0.1:8080{path}"]
    argv += ["-H", f"Authorization: Bearer {key}"] if key else []
    argv += ["--json", json.dumps(body)] if body else []
    text, _, status = machine.run(*argv).rpartition("\n")
    return int(status), text


def test_the_pool_serves_reloads_and_says_what_it_does(machine: PrivateSystemd) -> None:
    keys = machine.path("/etc/llamapool/keys")
    assert keys.stat().st_mode & 0o777 == 0o600
    machine.run("systemctl", "start", "llamapool.socket", "llamapool.service")
    assert ask(machine, "/readyz")[0] == 200
    assert ask(machine, "/v1/models")[0] == 401
    status, text = ask(machine, "/v1/models", key_of(machine))
    assert (status, json.loads(text)["data"][0]["id"]) == (200, "fake")

    def state() -> str:
        return machine.show("llamapool", "StatusText")

    until(lambda: state() == "running, 1 of 1 workers ready, 0 requests running, 0 waiting")
    for number in range(4):  # two have a slot
        machine.run(
            *("systemd-run", f"--unit=client-{number}", "curl", "-s", "--json"),
            json.dumps({"prompt": "hello", "n_predict": 900, "ignore_eos": True}),
            *("-H", f"Authorization: Bearer {key_of(machine)}"),
            "http://127.0.0.1:8080/completion",
        )
    until(lambda: state().endswith("2 requests running, 2 waiting"))

    before = machine.show("llamapool", "MainPID")
    machine.run("systemctl", "reload", "llamapool")
    log = ("journalctl", "-u", "llamapool", "--no-pager")
    until(lambda: "gateway replaced" in machine.run(*log))
    assert machine.show("llamapool", "ActiveState") in ("active", "reloading")
    until(lambda: machine.show("llamapool", "ActiveState") == "active")
    assert machine.show("llamapool", "MainPID") == before
    assert ask(machine, "/readyz")[0] == 200

    machine.path("/etc/llamapool/pool.toml").write_text("nonsense = 1\n")
    machine.run("systemctl", "reload", "llamapool")
    until(lambda: state().endswith("the last reload failed, see the log"))
    assert ask(machine, "/readyz")[0] == 200
    machine.path("/etc/llamapool/pool.toml").write_text(POOL)
    machine.run("systemctl", "stop", "client-*")


def test_the_service_is_shut_in(machine: PrivateSystemd) -> None:
    machine.run("systemctl", "start", "llamapool.service")
    pid = machine.show("llamapool", "MainPID")
    status = dict(
        line.split(":", 1) for line in machine.run("cat", f"/proc/{pid}/status").splitlines()
    )
    uid = machine.run("id", "-u", "llamapool").strip()
    assert status["Uid"].split() == [uid] * 4
    assert status["CapEff"].strip() == "0" * 16
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    # The file of the keys is root's; what the gateway reads is a copy, in memory.
    inside = ("nsenter", "-t", pid, "-m", "-S", uid, "-G", uid, "--")
    assert machine.ask(*inside, "cat", "/etc/llamapool/keys").returncode != 0


def test_connections_wait_while_the_service_restarts(machine: PrivateSystemd) -> None:
    machine.run("systemctl", "start", "llamapool.socket")
    machine.run("systemctl", "stop", "llamapool.service")
    assert machine.show("llamapool", "Result") == "success"
    assert ask(machine, "/livez")[0] == 200  # the socket starts the service


def test_gateway_and_worker_run_in_units_of_their_own(machine: PrivateSystemd) -> None:
    machine.path("/etc/default/llamapool-worker-chat-1").write_text("LLAMA_ARG_N_PARALLEL=1\n")
    units = ("llamapool-gateway", "llamapool-worker@chat-1")
    machine.run("systemctl", "start", "llamapool-gateway.socket", *units)
    assert machine.show("llamapool", "ActiveState") == "inactive", "they are for one address"
    assert ask(machine, "/v1/models", key_of(machine))[0] == 200
    until(lambda: machine.show(units[0], "StatusText").startswith("serving, 1 workers ready"))
    pid = machine.show(units[1], "MainPID")
    environ = machine.run("cat", f"/proc/{pid}/environ").split("\0")
    assert "LLAMA_ARG_N_PARALLEL=1" in environ
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in environ
    slots = json.loads(ask(machine, "/slots", key_of(machine))[1])
    assert len(slots) == 1
    assert "0 of 1 slots busy" in machine.run("llamapool", "status")
    assert "chat-1 has left" in machine.run("llamapool", "drain", "chat-1", "--force", "--wait")
    until(lambda: machine.show(units[1], "ActiveState") == "inactive")
    machine.run("systemctl", "start", units[1])
    pid = machine.show(units[1], "MainPID")
    inside = ("nsenter", "-t", pid, "-m", "-n", "--")
    # Even root sees only an empty file in their place.
    assert machine.ask(*inside, "cat", "/etc/llamapool/keys").stdout == ""
    assert machine.ask(*inside, "ls", "/run/credentials").stdout == ""
    machine.run("systemctl", "stop", "llamapool-gateway.socket", *units)
    assert [machine.show(unit, "Result") for unit in units] == ["success"] * 2


def test_the_package_goes_and_leaves_the_keys_until_it_is_purged(machine: PrivateSystemd) -> None:
    machine.run("systemctl", "start", "llamapool.service")
    machine.run("dpkg", "-r", "llamapool")
    assert machine.show("llamapool", "ActiveState") == "inactive"
    for path in ("/usr/lib/llamapool", "/usr/bin/llamapool"):
        assert not machine.path(path).exists()
    assert not list(machine.path("/usr/lib/systemd/system").glob("*llamapool*"))
    assert machine.path("/etc/llamapool/keys").exists()
    machine.run("dpkg", "-P", "llamapool")
    assert not machine.path("/etc/llamapool").exists()
