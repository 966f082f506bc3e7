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
        ("worker.worker_command, worker.process, worker.llama.backend", NETWORK | BULK),
    ],
)
def test_processes_do_without_what_they_do_not_use(imported: str, without: set[str]) -> None:
    assert not run(f"import {imported}") & without


def test_the_bindings_package_is_whole_for_whoever_asks() -> None:
    modules = run(
        "import worker.llama.library\n"
        "import llama_cpp\n"
        "version = llama_cpp.__version__\n"
        "from llama_cpp import Llama\n"
        "assert llama_cpp.__version__ == version and Llama\n"
        "try:\n"
        "    llama_cpp.nonsense\n"
        "except AttributeError as error:\n"
        "    assert 'nonsense' in str(error)\n"
        "else:\n"
        "    raise SystemExit('it is there')\n"
    )
    assert "llama_cpp.llama" in modules


def test_what_llama_cpp_says_is_heard_although_the_whole_package_would_print_it() -> None:
    run(
        "from worker.llama import library\n"
        "library.start()\n"
        "from llama_cpp import Llama\n"
        "import llama_cpp.llama_cpp as lib\n"
        "library.forget_log()\n"
        "lib.llama_model_load_from_file(b'/nowhere.gguf', lib.llama_model_default_params())\n"
        "assert 'nowhere.gguf' in library.last_warnings(), library.last_warnings()\n"
    )


def test_a_package_in_use_is_left_alone() -> None:
    assert "llama_cpp.llama" in run("import llama_cpp; import worker.llama.library")
