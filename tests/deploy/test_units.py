"""The units are valid, hardened and drain, and name what the code knows."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.install.tree import systemd_version
from protocol.config.config import GatewayConfig, load
from protocol.config.options.table import OPTIONS
from protocol.errors import EXIT_CONFIG

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
SOCKETS = sorted(SYSTEMD.glob("*.socket"))
OPTION_NAMES = {option.env for option in OPTIONS}

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def installed(folder: Path, *, old: bool) -> list[Path]:
    """Write the units as they are installed; `old`: for a systemd without notify-reload."""
    for path in [*UNITS, *SOCKETS]:
        text = path.read_text().replace("@BINDIR@/llamapool", "/bin/true")
        # An instance of the template is what can be verified.
        target = folder / path.name.replace("@.", "@small-1.")
        target.write_text(text.replace("@DOCDIR@", "/usr/share/doc/llamapool"))
    found = sorted(folder.iterdir())
    if old:
        drop_in = folder / "llamapool.service.d"
        drop_in.mkdir()
        (drop_in / "before-253.conf").write_text((SYSTEMD / "before-253.conf").read_text())
    return found


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
    is_old = systemd_version() < 253
    result = subprocess.run(
        ["systemd-analyze", "verify", *map(str, installed(tmp_path, old=is_old))],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [
        line for line in result.stderr.splitlines() if str(tmp_path) in line or "llamapool" in line
    ]
    assert result.returncode == 0, result.stderr
    # An old one names the type that the drop-in replaces.
    assert [one for one in complaints if not (is_old and "notify-reload" in one)] == []


@needs_systemd
@pytest.mark.parametrize(
    ("unit", "threshold"),
    [
        ("llamapool-gateway.service", 12),
        ("llamapool-worker@small-1.service", 10),
        ("llamapool.service", 20),
    ],
)
def test_units_are_hardened(unit: str, threshold: int, tmp_path: Path) -> None:
    installed(tmp_path, old=False)
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={threshold}"]
    result = subprocess.run([*argv, tmp_path / unit], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_report_readiness_and_drain(path: Path) -> None:
    unit = service(path)
    assert unit["Type"] == ("notify-reload" if path.stem == "llamapool" else "notify")
    assert unit["KillMode"] == "mixed"
    assert unit["Restart"] == "on-failure"
    if "worker" in path.stem:  # its model may be away for a time, and memory taken
        assert "RestartPreventExitStatus" not in unit and int(unit["RestartSec"]) >= 5
        assert "StartLimitIntervalSec=0\n" in path.read_text()
    else:
        assert unit["RestartPreventExitStatus"] == str(EXIT_CONFIG)
    assert int(unit["WatchdogSec"]) > 0
    assert int(unit["TimeoutStopSec"]) > GatewayConfig().drain_timeout_s


def test_an_old_systemd_reloads_by_a_signal_and_each_socket_unit_has_its_service() -> None:
    old = service(SYSTEMD / "before-253.conf")
    assert (old["Type"], old["ExecReload"]) == ("notify", "/bin/kill -HUP $MAINPID")
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
    assert "LLAMA_ARG_API_KEY_FILE" in OPTION_NAMES


def test_every_variable_of_units_and_defaults_is_an_option() -> None:
    texts = [path.read_text() for path in SYSTEMD.rglob("*") if path.is_file()]
    named = {name for text in texts for name in re.findall(r"LLAMA_ARG_\w+", text)}
    assert named <= OPTION_NAMES, named - OPTION_NAMES
    assert "LLAMA_ARG_REQUIRE_KEY" in named


def test_the_first_configuration_can_be_read() -> None:
    pool = load(SYSTEMD / "pool.toml")
    assert [worker.name for worker in pool.worker] == ["chat-1"]
    assert pool.gateway.metrics


DROP_INS = {path.stem: path for path in (SYSTEMD / "tcp").glob("*.conf")}


def with_drop_ins(folder: Path) -> None:
    """Add the drop-ins for tcp to installed units, as docs/running/fleet.md does."""
    installed(folder, old=False)
    for stem, path in DROP_INS.items():
        target = folder / f"{stem.replace('@', '@small-1')}.service.d"
        target.mkdir()
        text = path.read_text().replace("@BINDIR@/llamapool", "/bin/true")
        (target / "tcp.conf").write_text(text)


def test_each_drop_in_has_its_unit_and_its_credentials() -> None:
    assert DROP_INS.keys() == {"llamapool-gateway", "llamapool-worker@"}
    for stem, path in DROP_INS.items():
        text, own = path.read_text(), (SYSTEMD / f"{stem}.service").read_text()
        given = {one.partition(":")[0] for one in re.findall(r"^LoadCredential=(.*)$", text, re.M)}
        assert given == set(re.findall(r"%d/(\S+)", text))
        # What is emptied first is replaced, and not one command more than the unit's.
        assert text.count("ExecStart=") == 2 and "ExecStart=\n" in text
        (start,) = re.findall(r"^ExecStart=(\S.*)$", text, re.M)
        assert re.findall(r"^ExecStart=(\S.*)$", own, re.M)[0].startswith(start)
    gateway = DROP_INS["llamapool-gateway"].read_text()
    assert "worker_keys" not in gateway, "the folder is read itself, for it changes"


@needs_systemd
@pytest.mark.parametrize(
    ("unit", "threshold"),
    [("llamapool-gateway.service", 12), ("llamapool-worker@small-1.service", 16)],
)
def test_systemd_takes_the_drop_ins_and_the_units_stay_hardened(
    unit: str, threshold: int, tmp_path: Path
) -> None:
    with_drop_ins(tmp_path)
    told = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in told.stderr.splitlines() if "tcp.conf" in line]
    assert complaints == [] and told.returncode == 0, told.stderr
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={threshold}"]
    result = subprocess.run([*argv, tmp_path / unit], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
