"""What each process of a pool does without: every module stays in memory, in each of them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

NETWORK = {"ssl", "http.client", "urllib.request", "email", "asyncio"}
MODEL = {"numpy", "llama_cpp"}
SUPERVISOR = {"worker.cli", "worker.supervisor.supervisor", "worker.models.catalog"}
BULK = {"importlib.metadata", "zipfile", "sqlite3", "llama_cpp.llama", "diskcache"}


def run(code: str) -> set[str]:
    """Run code in a fresh interpreter; return the modules that it has then."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("imported", "without"),
    [
        (
            "worker.cli, worker.supervisor.supervisor",
            NETWORK | BULK | {"zmq", "numpy", "worker.engine.slot", "worker.grammar.nodes"},
        ),
        ("worker.worker_command, worker.process", SUPERVISOR | NETWORK | BULK | MODEL),
    ],
)
def test_processes_do_without_what_they_do_not_use(imported: str, without: set[str]) -> None:
    assert not run(f"import {imported}") & without
