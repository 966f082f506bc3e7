"""Checks that fail or hang, and children that do."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.config.config import GatewayConfig, PoolConfig, WorkerConfig
from protocol.wire.sampling import SamplingParams
from tests.models.shallow import shallow_path
from worker.doctor import probe
from worker.doctor.case import DoctorOptions, opened
from worker.doctor.examine import examine, guarded
from worker.doctor.finding import Finding, Level, exit_code, fail, mib, ok, warn
from worker.doctor.library import check_library
from worker.host import child
from worker.host.topology import read_host

pytestmark = pytest.mark.slow


def python(code: str, limit_s: float = 20.0) -> child.ChildOutcome:
    return child.run([sys.executable, "-c", code], os.environ, limit_s)


def test_a_child_says_its_facts_on_its_last_line() -> None:
    found = python(
        "import sys; print('noise'); print('{\"a\": 1}'); sys.stderr.write('x\\nlast\\n')"
    )
    assert (found.code, dict(found.facts), found.last_line) == (0, {"a": 1}, "last")


def test_a_child_that_dies_tells_by_what() -> None:
    found = python("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert found.code == -signal.SIGILL
    assert "illegal instruction" in check_library(found, frozenset(), frozenset()).text


def test_a_child_that_hangs_is_ended_with_all_it_started() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    hanging = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    for one in (hanging, f"{code}; {hanging}"):
        assert python(one, 0.5).code is None


def test_a_command_that_is_not_there_is_an_outcome() -> None:
    found = child.run(["/nonexistent"], {}, 1.0)
    assert (found.code, "cannot start" in found.stderr) == (127, True)


def test_a_check_that_fails_is_a_finding() -> None:
    def broken() -> Iterator[Finding]:
        yield ok("x", "first")
        raise KeyError("oops")

    first, second = guarded("x", broken, 10.0)
    assert first.level is Level.OK
    assert (second.level, "oops" in second.text) == (Level.WARN, True)


def test_a_check_that_hangs_is_left_behind() -> None:
    over = threading.Event()

    def hanging() -> Iterator[Finding]:
        over.wait()
        yield ok("x", "late")

    (found,) = guarded("x", hanging, 0.05)
    over.set()
    assert "did not end" in found.text


def test_only_failures_count() -> None:
    assert exit_code([ok("a", ""), warn("b", "", "")]) == 0
    assert exit_code([ok("a", ""), fail("b", "", "")]) == 1
    assert (mib(2**20), mib(2**34)) == ("1 MiB", "16.0 GiB")


def test_a_pool_of_fake_workers_is_examined_to_the_end(tmp_path: Path) -> None:
    pool = PoolConfig(worker=(WorkerConfig(backend="fake", count=2),))
    case = opened(pool, "", tmp_path, DoctorOptions(loads=False))
    found = {finding.name: finding for finding in examine(case)}
    assert {"python", "llama.cpp", "gpu", "zeromq", "files", "placement", "load"} <= found.keys()
    assert found["config"].text == "valid, 2 workers"
    host = read_host().name
    assert f"workers={host}/fake-1,{host}/fake-2" in found["placement"].text


def test_a_configuration_that_cannot_work_is_examined_as_far_as_it_goes(tmp_path: Path) -> None:
    pool = PoolConfig(worker=(WorkerConfig(model=str(tmp_path / "none.gguf"), numa="isolate"),))
    case = opened(pool, "", tmp_path, DoctorOptions(loads=False))
    assert "does not exist" in case.fault
    found = [finding for finding in examine(case) if finding.level is Level.FAIL]
    assert [finding.name for finding in found if finding.name in ("config", "model")] == [
        "config",
        "model",
    ]


def test_what_the_gateway_refuses_at_its_start_is_told_all_at_once(tmp_path: Path) -> None:
    gateway = GatewayConfig(
        host="0.0.0.0",
        require_key=True,
        ssl_key_file="key.pem",
        ui_config="[]",
        static_path="/nonexistent",
        media_path="/nonexistent",
        media_url_allow=("::x",),
        trusted_proxies=("x",),
        api_prefix="x",
        health_route="x",
    )
    faulty = "/nonexistent.gguf"
    for worker in (WorkerConfig(backend="fake"), WorkerConfig(model=faulty)):
        pool = PoolConfig(gateway=gateway, worker=(worker,))
        found = examine(opened(pool, "", tmp_path, DoctorOptions(loads=False)))
        texts = [finding.text for finding in found if finding.name == "gateway"]
        assert len(texts) == 9
        named = ("require_key", "ssl_key_file", "--ui-config", "--path", "--media-path")
        for option in (*named, "--media-url-allow", "trusted_proxies", "--api-prefix"):
            assert any(option in text for text in texts), option
        assert any(text.startswith("health_route x:") for text in texts)


def test_keys_of_options_reach_the_gateway_that_is_asked(tmp_path: Path) -> None:
    gateway = GatewayConfig(host="0.0.0.0", require_key=True, api_key=("k",))
    pool = PoolConfig(gateway=gateway, worker=(WorkerConfig(backend="fake"),))
    case = opened(pool, "", tmp_path, DoctorOptions(loads=False))
    (found,) = [finding for finding in examine(case) if finding.name == "gateway"]
    assert found.level is Level.OK
    assert "k" not in json.loads((tmp_path / "pool.json").read_text())["gateway"]["api_key"]


def test_models_to_choose_from_are_looked_for_as_at_a_start(tmp_path: Path) -> None:
    folder = GatewayConfig(models_dir="/nonexistent")
    preset = GatewayConfig(models_preset="/nonexistent")
    for gateway, named in ((folder, "models_dir"), (preset, "models_preset")):
        case = opened(PoolConfig(gateway=gateway), "", tmp_path, DoctorOptions())
        assert f"{named} /nonexistent" in case.fault


def test_without_a_folder_for_a_configuration_the_rest_is_examined(tmp_path: Path) -> None:
    pool = PoolConfig(worker=(WorkerConfig(backend="fake"),))
    found = {one.name: one for one in examine(opened(pool, "", None, DoctorOptions()))}
    assert [found[name].level for name in ("gateway", "load")] == [Level.WARN, Level.WARN]
    assert "no folder" in found["gateway"].text
    assert found["config"].level is Level.OK


def test_a_model_that_is_still_to_be_fetched_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    url = "http://127.0.0.1:9/m.gguf"
    workers = (WorkerConfig(hf_repo="u/m"), WorkerConfig(model_url=url, model=f"{tmp_path}/m.gguf"))
    case = opened(PoolConfig(worker=workers), "", tmp_path, DoctorOptions(loads=False))
    found = [finding for finding in examine(case) if finding.name == "model"]
    assert [finding.level for finding in found] == [Level.WARN, Level.WARN]
    assert ["u/m is not on this host" in found[0].text, url in found[1].text] == [True, True]


def test_of_a_configuration_that_cannot_be_read_only_the_host_is_examined(tmp_path: Path) -> None:
    case = opened(PoolConfig(), "pool.toml: no such key", tmp_path, DoctorOptions(loads=False))
    found = {finding.name: finding for finding in examine(case)}
    assert found["config"].text == "pool.toml: no such key"
    assert {"python", "llama.cpp", "gpu", "zeromq", "files"} <= found.keys()
    assert not {"port", "runtime_dir", "model", "memory", "placement", "load"} & found.keys()


# ---- probing ----------------------------------------------------------------------------------


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_most_tasks_of_the_group_and_the_user_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "limit", lambda _kind: (50, 50))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert probe.max_tasks(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/pids.max", "77\n")
    assert probe.max_tasks(tmp_path) == 77
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert probe.max_tasks(tmp_path) == 50
    monkeypatch.setattr(probe, "limit", lambda _kind: (-1, -1))
    assert probe.max_tasks(tmp_path) == 77


def test_an_address_in_use_is_found() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ((where, fault),) = probe.addresses(GatewayConfig(port=port))
        assert where == f"127.0.0.1:{port}"
        assert "Address already in use; choose another" in fault
    first, again = probe.addresses(GatewayConfig(host="localhost,localhost", port=port))
    assert first[1] == ""
    assert "Address already in use" in again[1]
    ((_, fault),) = probe.addresses(GatewayConfig(host="/nonexistent/x.sock"))
    assert "cannot be written" in fault
    ((_, fault),) = probe.addresses(GatewayConfig(host=f"/tmp/{'x' * 100}.sock"))
    assert "longer than the 107 bytes" in fault
    ((_, fault),) = probe.addresses(GatewayConfig(host="a..b"))
    assert "no host has such a name" in fault


def test_a_file_that_will_be_written_is_judged_without_making_it(tmp_path: Path) -> None:
    assert probe.may_append(tmp_path / "log")
    assert not probe.may_append(tmp_path / "none" / "log")
    assert not probe.may_append(tmp_path)
    assert probe.may_hold_files(tmp_path / "none" / "usage")
    (tmp_path / "file").touch()
    assert not probe.may_hold_files(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_directory_that_will_be_made_is_judged_by_its_parent(tmp_path: Path) -> None:
    path, mode, can = probe.directory(str(tmp_path / "a" / "b"))
    assert (path, mode, can) == (tmp_path / "a" / "b", None, True)


@pytest.mark.model
@pytest.mark.cpu
def test_a_model_is_loaded_and_computed_with(tmp_path: Path) -> None:
    case = opened(PoolConfig(), "", tmp_path, DoctorOptions(limit_s=60.0))
    found = [finding for finding in examine(case) if finding.name == "load"]
    assert [(finding.level, "and computed" in finding.text) for finding in found] == [
        (Level.OK, True)
    ]


@pytest.mark.model
@pytest.mark.cpu
def test_workers_of_one_model_with_other_options_are_loaded_too(tmp_path: Path) -> None:
    workers = (
        WorkerConfig(model=shallow_path(), n_ctx=256, count=2),
        WorkerConfig(
            model=shallow_path(), n_ctx=256, sampling=SamplingParams(grammar="root ::= (")
        ),
    )
    case = opened(PoolConfig(worker=workers), "", tmp_path, DoctorOptions(limit_s=60.0))
    found = [finding for finding in examine(case) if finding.name == "load"]
    assert [finding.level for finding in found] == [Level.OK, Level.FAIL]
    assert "grammar" in found[1].text
