"""The units are valid, hardened and drain; the other deployment files say what the code does."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from protocol.config.config import GatewayConfig
from protocol.config.options.table import OPTIONS
from worker.supervisor.children.restart_policy import EXIT_CONFIG

DEPLOY = Path(__file__).parent.parent / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
SOCKETS = sorted(DEPLOY.glob("*.socket"))

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def service(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser["Service"]


def test_all_units_are_here() -> None:
    assert [path.name for path in UNITS] == [
        "llamapool-gateway.service",
        "llamapool-worker@.service",
        "llamapool.service",
    ]


@needs_systemd
def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    for path in [*UNITS, *SOCKETS]:
        text = path.read_text().replace("/opt/llamapool/bin/llamapool", "/bin/true")
        # An instance of the template is what can be verified.
        (tmp_path / path.name.replace("@.", "@small-1.")).write_text(text)
    result = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [
        line for line in result.stderr.splitlines() if str(tmp_path) in line or "llamapool" in line
    ]
    assert result.returncode == 0, result.stderr
    assert complaints == []


@needs_systemd
@pytest.mark.parametrize(
    ("unit", "threshold"),
    [
        ("llamapool-gateway.service", 11),
        ("llamapool-worker@.service", 10),
        ("llamapool.service", 20),
    ],
)
def test_units_are_hardened(unit: str, threshold: int) -> None:
    result = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            f"--threshold={threshold}",
            DEPLOY / unit,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_report_readiness_and_drain(path: Path) -> None:
    unit = service(path)
    assert unit["Type"] == "notify"
    assert unit["KillMode"] == "mixed"
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == str(EXIT_CONFIG)
    assert int(unit["WatchdogSec"]) > 0
    assert int(unit["TimeoutStopSec"]) > GatewayConfig().drain_timeout_s


def test_a_reload_is_a_signal_and_each_socket_unit_has_its_service() -> None:
    assert service(DEPLOY / "llamapool.service")["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert [path.stem for path in SOCKETS] == ["llamapool-gateway", "llamapool"]
    for path in SOCKETS:
        assert path.with_suffix(".service") in UNITS
        assert f"ListenStream={GatewayConfig().host}:{GatewayConfig().port}\n" in path.read_text()


def test_keys_are_a_credential_of_those_who_need_them() -> None:
    for path in UNITS:
        text = path.read_text()
        if "worker@" in path.name:
            assert "LoadCredential" not in text
            assert "InaccessiblePaths=-/etc/llamapool/keys -/run/credentials" in text
        else:
            assert service(path)["LoadCredential"] == "keys:/etc/llamapool/keys"
            assert "Environment=LLAMA_ARG_API_KEY_FILE=%d/keys" in text
    assert "LLAMA_ARG_API_KEY_FILE" in {option.env for option in OPTIONS}


def test_dockerfile_copies_what_is_there_and_uses_known_names() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *names, _ = line.split()
        assert all((DEPLOY.parent / name).exists() for name in names), line
    known = {option.env for option in OPTIONS}
    assert set(re.findall(r"LLAMA_ARG_\w+", text)) <= known
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
    # It listens on every address: without a key it must not start.
    assert "LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_REQUIRE_KEY=1" in text


def test_prometheus_scrapes_our_address() -> None:
    text = (DEPLOY / "prometheus.yml").read_text()
    assert f'"{GatewayConfig().host}:{GatewayConfig().port}"' in text
    assert "metrics_path: /metrics" in text
