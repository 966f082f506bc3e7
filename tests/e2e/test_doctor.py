"""`llamapool doctor`, run as a person runs it."""

import json
from pathlib import Path

import pytest

from tests.e2e.process import Process, python

pytestmark = pytest.mark.slow


def report(*args: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    """Run it; return its exit code and the last finding of each check."""
    process = Process(python("-m", "worker.doctor", "--json", "--port", "0", *args), env)
    try:
        code = process.wait(60)
        checks = json.loads(process.lines[-1])["checks"]
        return code, {check["name"]: check for check in checks}
    finally:
        process.close()


@pytest.mark.model
def test_a_host_that_can_serve_is_well() -> None:
    code, found = report()
    assert code == 0
    assert not [check for check in found.values() if check["level"] == "fail"]
    assert "computed" in found["load"]["text"]
    assert "threads=" in found["placement"]["text"]


def test_a_broken_configuration_is_named_and_the_host_is_still_checked(tmp_path: Path) -> None:
    config = tmp_path / "pool.toml"
    config.write_text("[gateway]\nprot = 1\n")
    code, found = report("--config", str(config), env={"LLAMA_CPP_LIB_PATH": str(tmp_path)})
    assert code == 1
    assert "prot" in found["config"]["text"]
    assert found["llama.cpp"]["level"] == "fail"
    assert found["zeromq"]["level"] == "ok"
    assert "load" not in found


def test_the_configuration_of_llama_cpp_is_read_as_by_serve(tmp_path: Path) -> None:
    path = tmp_path / "llama.cpp" / "config.ini"
    path.parent.mkdir()
    path.write_text("port = x\n")
    code, found = report("--no-load", env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert code == 1
    assert f"{path}: [default]: port: must be a number" in found["config"]["text"]
