"""On what it was measured, and what was measured."""

import contextlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from benchmarks.compare.servers import ROOT
from protocol.version import version


def machine() -> dict[str, str]:
    """Describe this machine; its load shows whether other work ran on it."""
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def versions(binary: Path) -> dict[str, str]:
    """Name what was compared."""
    return {
        "llamapool": f"{version()} {_commit()}".strip(),
        "llama-cpp-python": _installed("llama-cpp-python"),
        "llama-server": _said([str(binary), "--version"], {"LD_LIBRARY_PATH": str(binary.parent)}),
        "python": platform.python_version(),
    }


def _first(path: str, name: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    commit = _said(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], {})
    changed = _said(["git", "-C", str(ROOT), "status", "--porcelain"], {})
    return commit + ("+changes" if commit and changed else "")


def _said(command: list[str], environment: dict[str, str]) -> str:
    """Return the first line that a command says; nothing if it fails."""
    with contextlib.suppress(OSError):
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return next(iter((done.stdout + done.stderr).strip().splitlines()), "")
    return ""
