"""The Debian package of this tree, built once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def install(*args: str) -> "subprocess.CompletedProcess[str]":
    """Run `python -m deploy.install` on the environment of this interpreter."""
    argv = [sys.executable, "-m", "deploy.install", *args, "--environment", sys.prefix]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def skip_without_system_python() -> None:
    """Skip the test if no interpreter of our version is there for all users."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not any((Path(folder) / name).exists() for folder in ("/usr/bin", "/usr/local/bin")):
        pytest.skip(f"{name} is not installed for all users")


@pytest.fixture(scope="session")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    skip_without_system_python()
    out = tmp_path_factory.mktemp("deb")
    result = install("deb", "--out", str(out), "--compression", "none")
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.strip())
