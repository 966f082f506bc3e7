"""Container files name what is there; their scripts are run for real."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import gateway
from protocol.config.config import GatewayConfig
from protocol.config.options.table import OPTIONS
from tests.e2e.process import Process
from worker.worker_command import worker

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
FILES = sorted(DOCKER.glob("*.Dockerfile"))
USER = "10001"


def stages(path: Path) -> list[str]:
    """Split a Dockerfile into the texts of its stages, continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    return re.split(r"^(?=FROM )", text, flags=re.MULTILINE)[1:]


def test_all_files_are_here() -> None:
    names = [path.name for path in FILES]
    assert names == ["cpu.Dockerfile", "cuda.Dockerfile", "gateway.Dockerfile"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_images_are_small_shut_in_and_known(path: Path) -> None:
    build, final = stages(path)
    assert build.startswith("FROM ") and " AS build" in build.splitlines()[0]
    for image in re.findall(r"^FROM (\S+)", path.read_text(), re.MULTILINE):
        name, _, tag = image.partition(":")
        assert tag and tag != "latest" and re.fullmatch(r"[a-z]+(/[a-z]+)?", name), image
    for line in re.findall(
        r"^COPY (?!--from)(?:--chmod=\d+ )?(.+)$", path.read_text(), re.MULTILINE
    ):
        *names, _ = line.split()
        for name in names:
            assert (ROOT / name).exists(), name
            assert is_sent(name), f"{name} is left out by .dockerignore"
    assert re.findall(r"^USER (\S+)", final, re.MULTILINE) == [USER]
    assert "build-essential" not in final and "COPY --from=build" in final
    assert "HEALTHCHECK" in final and 'CMD ["healthcheck.sh"]' in final
    assert 'ENTRYPOINT ["entrypoint.sh"]' in final
    assert "LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_REQUIRE_KEY=1" in final
    known = {option.env for option in OPTIONS}
    assert set(re.findall(r"LLAMA_ARG_\w+", path.read_text())) <= known
    for install in re.findall(r"apt-get install.*", build + final):
        assert "--no-install-recommends" in install and "rm -rf /var/lib/apt/lists/*" in install


def is_sent(name: str) -> bool:
    """Whether .dockerignore lets a path through to the build."""
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    return any(name == one or name.startswith(f"{one}/") for one in allowed)


def flags_of(command: Any) -> set[str]:
    return {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}


def test_compose_says_what_the_images_know() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for name, command in (("gateway", gateway), ("worker", worker)):
        service = compose["services"][name]
        assert (ROOT / service["build"]["dockerfile"]).exists()
        flags = {argument.partition("=")[0] for argument in service["command"]}
        assert flags <= flags_of(command), name
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        seconds = int(service["stop_grace_period"].removesuffix("s"))
        assert seconds > GatewayConfig().drain_timeout_s
    service = compose["services"]["gateway"]
    assert set(service["environment"]) <= {one.env for one in OPTIONS} | {"LLAMAPOOL_STATE_FILE"}
    where = service["environment"]["LLAMA_ARG_USAGE_DIR"]
    mounted = [one.partition(":")[::2] for one in service["volumes"]]
    assert [name for name, path in mounted if where.startswith(f"{path}/")] == ["state"]
    assert "state" in compose["volumes"]
    assert all("/var/lib/llamapool\n" in stages(path)[1] for path in FILES), "its owner"
    assert compose["services"]["gateway"]["ports"] == ["127.0.0.1:8080:8080"]
    assert f"uid={USER}," in compose["volumes"]["sockets"]["driver_opts"]["o"]


def has_compose() -> bool:
    argv = ["docker", "compose", "version"]
    return (
        bool(shutil.which("docker"))
        and not subprocess.run(argv, capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
def test_docker_reads_the_compose_file(tmp_path: Path) -> None:
    argv = ["docker", "compose", "-f", str(DOCKER / "compose.yaml"), "config", "-q"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """Lay the environment of an image out: its command, its runtime directory, its variables."""
    binary = tmp_path / "bin" / "llamapool"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m worker.cli "$@"\n')
    binary.chmod(0o755)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    return {
        "PATH": f"{binary.parent}:{os.environ['PATH']}",
        "RUNTIME_DIRECTORY": str(runtime),
        "LLAMAPOOL_SECRETS": str(tmp_path / "secrets"),
        "LLAMA_ARG_HOST": "0.0.0.0",
        "LLAMA_ARG_PORT": "0",
        "LLAMA_ARG_REQUIRE_KEY": "1",
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", [[], ["serve"]])
def test_a_public_address_without_a_key_is_refused(
    image: dict[str, str], tmp_path: Path, command: list[str]
) -> None:
    pool = tmp_path / "pool.toml"
    pool.write_text('[[worker]]\nbackend = "fake"\n')
    env = {**image, "LLAMAPOOL_ROLE": "gateway", "LLAMAPOOL_CONFIG": str(pool)}
    process = Process([str(DOCKER / "entrypoint.sh"), *command], env)
    try:
        assert process.wait(30) == 78
        assert "other hosts can reach 0.0.0.0 without a key" in process.text
        assert "--api-key-file" in process.text
    finally:
        process.close()


@pytest.mark.slow
def test_gateway_and_worker_meet_and_are_healthy(image: dict[str, str], tmp_path: Path) -> None:
    secret = tmp_path / "secrets" / "keys"
    secret.parent.mkdir()
    secret.write_text("sesame admin\n")
    pool = tmp_path / "pool.toml"
    pool.write_text('[[worker]]\nbackend = "fake"\n')
    socket = f"ipc://{image['RUNTIME_DIRECTORY']}/workers.sock"
    entry = str(DOCKER / "entrypoint.sh")
    started = []
    try:
        for role, argument in (("gateway", f"--bind={socket}"), ("worker", f"--connect={socket}")):
            state = tmp_path / f"{role}.state"
            env = {**image, "LLAMAPOOL_ROLE": role, "LLAMAPOOL_STATE_FILE": str(state)}
            env["LLAMAPOOL_CONFIG"] = str(pool)
            assert healthy(env) != 0
            started.append(Process([entry, argument], env))
            while healthy(env) != 0:
                assert started[-1].popen.poll() is None, started[-1].text
                time.sleep(0.05)
        status = subprocess.run(
            ["llamapool", "status"], env=env, capture_output=True, text=True, check=True
        )
        assert re.search(r"^\S+ .* fake +ready", status.stdout, re.MULTILINE), status.stdout
        os.utime(tmp_path / "worker.state", (0, 0))
        assert healthy(env) != 0, "it makes no progress"
    finally:
        for process in started:
            process.close()


def healthy(env: dict[str, str]) -> int:
    return subprocess.run([DOCKER / "healthcheck.sh"], env=env, check=False).returncode


def test_prometheus_scrapes_our_address() -> None:
    text = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    assert f'"{GatewayConfig().host}:{GatewayConfig().port}"' in text
    assert "metrics_path: /metrics" in text
