"""docs/running/fleet.md to the letter, between three network namespaces with names of their own."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None,
        reason="network namespaces need root and ip",
    ),
    pytest.mark.skipif(
        not entry_points(group="llamapool.commands"),
        reason="llamapool is not installed, so it has no command `gateway`",
    ),
]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "running" / "fleet.md").read_text()
HOSTS = {"gw": "10.0.0.1", "gpu-1": "10.0.0.2", "gpu-2": "10.0.0.3"}
MARK = f"lp{os.getpid() % 50_000}"


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Hosts:
    """Three hosts on one wire; `/etc/llamapool` of each is a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        command = bin_folder / "llamapool"
        command.write_text(
            f'#!/bin/sh\nexec {sys.executable} -P -c "from worker.cli import main; main()" "$@"\n'
        )
        command.chmod(0o755)
        self._path = f"{bin_folder}:{os.environ['PATH']}"

    def start(self) -> None:
        ip("netns", "add", f"{MARK}-wire")
        ip("-n", f"{MARK}-wire", "link", "add", "wire", "type", "bridge")
        ip("-n", f"{MARK}-wire", "link", "set", "wire", "up")
        for number, (name, address) in enumerate(HOSTS.items()):
            space, near, far = f"{MARK}-{name}", f"{MARK}a{number}", f"{MARK}b{number}"
            ip("netns", "add", space)
            ip("link", "add", near, "type", "veth", "peer", "name", far)
            ip("link", "set", near, "netns", f"{MARK}-wire")
            ip("link", "set", far, "netns", space)
            ip("-n", f"{MARK}-wire", "link", "set", near, "master", "wire", "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", far)
            for device in (far, "lo"):
                ip("-n", space, "link", "set", device, "up")
            (self.folder / name).mkdir()

    def close(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(20)
        for name in ("wire", *HOSTS):
            subprocess.run(
                ["ip", "netns", "del", f"{MARK}-{name}"], capture_output=True, check=False
            )

    def here(self, host: str, text: str) -> str:
        """Write the path of each host's files as it is seen from outside."""
        text = re.sub(r"\b(gw|gpu-\d):/etc/llamapool", lambda m: str(self.folder / m[1]), text)
        return text.replace("/etc/llamapool", str(self.folder / host))

    def argv(self, host: str, command: str) -> list[str]:
        inner = f"hostname {host}; {self.here(host, command)}"
        return ["ip", "netns", "exec", f"{MARK}-{host}", "unshare", "--uts", "sh", "-ec", inner]

    def env(self, host: str) -> dict[str, str]:
        foreign = ("LLAMA_", "LLAMAPOOL_", "NOTIFY_", "XDG_")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        runtime = self.folder / f"run-{host}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        return {**clean, "PATH": self._path, "XDG_RUNTIME_DIR": str(runtime)}

    def run(self, host: str, command: str, *, check: bool = True) -> str:
        done = subprocess.run(
            self.argv(host, command),
            capture_output=True,
            text=True,
            check=False,
            env=self.env(host),
            timeout=60,
        )
        assert done.returncode == 0 or not check, (command, done.stdout, done.stderr)
        return done.stdout

    def spawn(self, host: str, command: str) -> None:
        with (self.folder / f"{host}.log").open("wb") as log:
            argv, env = self.argv(host, f"exec {command}"), self.env(host)
            self._running.append(subprocess.Popen(argv, env=env, stdout=log, stderr=log))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    one = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        one.start()
        yield one
    finally:
        one.close()


def commands(step: int) -> list[tuple[str, str]]:
    """Return host and command of each line of a step; a comment says where else it is to be run."""
    text = PAGE.split(f"\n**{step}. ")[1].split(f"\n**{step + 1}. ")[0].split("\n## ")[0]
    found = []
    for line in re.findall(r"^(\S+)#\s+(.*)$", text, re.MULTILINE):
        host, (command, _, comment) = line[0], line[1].partition("   #")
        found.append((host, command.strip()))
        if also := re.search(r"the same on (\S+)", comment):
            found.append((also[1], command.strip().replace(host, also[1])))
    return found


def until(holds: Callable[[], bool], limit_s: float = 90) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def configure(hosts: Hosts) -> None:
    """Step 3: take the two examples, and change what the page says must be changed."""
    for host in HOSTS:
        name = "fleet-gateway" if host == "gw" else "fleet-worker"
        text = (ROOT / "configs" / f"{name}.toml").read_text()
        if host != "gw":
            text = text.replace("gpu-1", host).replace("n_ctx = 32768", "n_ctx = 2048")
        (hosts.folder / host / "pool.toml").write_text(hosts.here(host, text))


def is_serving(told: str) -> bool:
    """Whether the slots of both hosts are there."""
    found = json.loads(told or "{}")
    return found.get("status") == "ok" and len(found["slots"]) == 16


def test_three_hosts_become_one_pool_as_the_page_says(hosts: Hosts) -> None:
    for step in (1, 2):
        for host, command in commands(step):
            hosts.run(host, command.replace("scp ", "cp "))
    configure(hosts)
    start = PAGE.split("Without systemd:")[1].split("\n\n")[0]
    gateway, worker = re.findall(r"`(llamapool .*?)`", start.replace("\n", " "))
    key = "test-key"
    (hosts.folder / "gw" / "api-keys").write_text(f"{key} admin\n")
    hosts.spawn("gw", gateway.replace("FILE", "/etc/llamapool/pool.toml"))
    until(lambda: "listening for workers" in (hosts.folder / "gw.log").read_text())
    said = hosts.run(
        "gpu-1", "llamapool doctor --config /etc/llamapool/pool.toml --no-load", check=False
    )
    assert re.search(r"keys .*1 key of gateways", said), said
    assert re.search(r"links .*somebody listens there", said), said
    for host in ("gpu-1", "gpu-2"):
        hosts.spawn(host, worker.replace("FILE", "/etc/llamapool/pool.toml"))
    health, metrics = [command for host, command in commands(5) if host == "gw"]

    def is_whole() -> bool:
        return "gpu-2/chat-1" in (told := hosts.run("gw", metrics, check=False)) and (
            "gpu-1/chat-1" in told
        )

    until(is_whole)
    until(lambda: is_serving(hosts.run("gw", health.partition("|")[0], check=False)))
    body = json.dumps({"prompt": "Hello", "n_predict": 4, "ignore_eos": True})
    answer = json.loads(hosts.run("gw", f"curl -s localhost:8080/completion -d '{body}'"))
    assert answer["tokens_predicted"] == 4
