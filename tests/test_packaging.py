"""What is shipped: our packages, the commands, the pins."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import protocol

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement(line: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", line)
    assert match
    return normal(match[0])


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {normal(name): version for name, _, version in pairs}


def test_our_packages_are_not_shadowed_by_distributions_of_the_same_name() -> None:
    assert Path(protocol.__file__).parent.parent == ROOT


def test_every_dependency_is_pinned() -> None:
    names = {requirement(line) for line in PROJECT["dependencies"]}
    assert names <= pins().keys()


def test_installed_versions_are_the_pinned_ones() -> None:
    for name, version in pins().items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a tool that this environment does without
        assert installed == version, name


def test_constraints_are_exact_and_name_no_host() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+]*", line)


@pytest.mark.parametrize("args", [["--help"], ["serve", "--help"], ["worker", "--help"]])
def test_help_needs_no_heavy_module(args: list[str]) -> None:
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('llama_cpp', 'zmq', 'numpy', 'starlette', 'hypercorn'):\n"
        "            raise ImportError(f'{name} is not here')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from worker.cli import main\n"
        f"main({args!r})\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "Usage:" in result.stdout


def test_usage_errors_exit_with_2_and_the_nearest_name() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "worker.cli", "serve", "--ctx-sise", "5"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 2
    assert "--ctx-size" in result.stderr


def test_wheel_holds_the_three_packages_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "gateway",
        "protocol",
        "worker",
    }
    assert {f"{top}/py.typed" for top in ("gateway", "protocol", "worker")} <= set(names)
