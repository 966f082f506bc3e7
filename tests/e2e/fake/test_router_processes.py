"""Models that come and go with the requests: real processes over the fake backend."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import ROOT, python
from tests.e2e.served import Served, eventually
from tests.worker.models.test_cached import put

pytestmark = pytest.mark.slow

Route = Callable[..., Served]

CONFIG = """
[gateway]
port = 0
heartbeat_s = 0.2
models_dir = "models"
models_preset = "models.ini"
models_max = {models_max}
queue_timeout_s = {queue_timeout_s}
gateways = {gateways}
[[worker]]
backend = "fake"
n_slots = 2
fake_step_ms = 5
"""


HUB = """
import pathlib, time

def list_repo_files(repo, token):
    return ["m-F16.gguf", "m-Q8_0.gguf"]

def hf_hub_download(repo, name, *, token, cache_dir, tqdm_class):
    folder = pathlib.Path(cache_dir, "models--" + repo.replace("/", "--"))
    commit = folder / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit.name)
    with tqdm_class(total=4) as bar:
        (commit / name).write_bytes(b"GGUF")
        bar.update(4)
    if "hangs" in repo:
        time.sleep(600)
    return str(commit / name)
"""
"""Stands in for the hub's package: it writes files of four bytes."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Route]:
    """Serve these models of a folder, and those of a preset file."""
    running: list[Served] = []

    def begin(*names: str, ini: str = "", **gateway: int) -> Served:
        (folder / "models").mkdir()
        for name in names:
            (folder / "models" / f"{name}.gguf").touch()
        (folder / "models.ini").write_text(ini)
        defaults = {"models_max": 4, "queue_timeout_s": 60, "gateways": 1}
        config = folder / "pool.toml"
        config.write_text(CONFIG.format(**defaults | gateway))
        (folder / "huggingface_hub.py").write_text(HUB)
        path_of_hub = os.pathsep.join([str(folder), str(ROOT)])
        env = {"LLAMA_CACHE": str(folder / "cache"), "PYTHONPATH": path_of_hub}
        command = python("-m", "worker.cli", "serve", "--config", str(config))
        served = Served(command, env)
        served.config = config
        running.append(served)
        return served.wait_until_ready()

    yield begin
    for served in running:
        served.close()


@pytest.fixture
def route(tmp_path: Path) -> Iterator[Route]:
    """Start servers that live as long as the test."""
    with serving(tmp_path) as begin:
        yield begin


INI = "[broken]\nlora = /no/such/file\n[first]\nload-on-startup = true\n[edited]\nc = {n_ctx}\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server with models for many tests: none touches those of another."""
    folder = tmp_path_factory.mktemp("models")
    put(folder / "cache", "u/m", "m-F16.gguf", "m-Q8_0.gguf")
    names = ("plain", "first", "edited", "killed", "ended", "gone", "told", "untold")
    with serving(folder) as begin:
        yield begin(*names, ini=INI.format(n_ctx=512), models_max=10)


def states(served: Served, *of: str, query: str = "") -> dict[str, str]:
    """Return the states of the models whose names begin with these, or of all."""
    listed = served.client.get(f"/models{query}").json()["data"]
    found = {model["id"]: model["status"]["value"] for model in listed}
    return {name: state for name, state in found.items() if not of or name.startswith(of)}


def asked(served: Served, model: str, n_predict: int = 4) -> httpx.Response:
    return served.complete("Hello", model=model, n_predict=n_predict)


def test_models_come_with_their_requests_and_make_room_for_one_another(route: Route) -> None:
    served = route("a", "b", "c", models_max=2)
    for name in ("a", "b", "a", "c"):
        answer = asked(served, name)
        assert (answer.status_code, answer.json()["model"]) == (200, name)
    assert states(served) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    assert served.survivors() == []


def test_a_model_of_the_cache_is_deleted_with_its_files(shared: Served) -> None:
    served = shared
    (file,) = shared.config.parent.glob("cache/models--u--m/snapshots/*/m-F16.gguf")
    assert asked(served, "u/m:F16").status_code == 200
    assert states(served, "u/m") == {"u/m:F16": "loaded", "u/m:Q8_0": "unloaded"}
    answer = served.client.delete("/models?model=u/m:F16")
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert states(served, "u/m") == {"u/m:Q8_0": "unloaded"}
    assert [one.name for one in file.parent.iterdir()] == ["m-Q8_0.gguf"]
    assert asked(served, "u/m:F16").status_code == 400


def test_a_model_is_downloaded_used_and_deleted(shared: Served) -> None:
    served = shared
    with served.client.stream("GET", "/models/sse") as stream:
        answer = served.client.post("/models", json={"model": "u/new:F16"})
        assert (answer.status_code, answer.json()) == (200, {"success": True})
        lines = (line[6:] for line in stream.iter_lines() if line.startswith("data: "))
        events = (json.loads(line) for line in lines)
        told = list(islice((one for one in events if one["model"] == "u/new:F16"), 4))
    done = {"progress": {"m-F16.gguf": {"done": 4, "total": 4}}}
    assert [one.get("data") for one in told] == [{"status": "downloading"}, done, done, None]
    progress = ["download_progress"] * 2
    assert [one["event"] for one in told] == ["model_status", *progress, "download_finished"]
    assert states(served, "u/new") == {"u/new:F16": "unloaded"}
    assert asked(served, "u/new:F16").status_code == 200
    assert served.client.delete("/models?model=u/new:F16").json() == {"success": True}
    assert states(served, "u/new") == {}
    refused = served.client.post("/models", json={"model": "u/new:Q2_K"}).json()["error"]
    assert refused["code"] == 400
    assert "no GGUF file of Q2_K" in refused["message"]


def test_unloading_cancels_a_download(shared: Served) -> None:
    model = {"model": "u/hangs:F16"}
    assert shared.client.post("/models", json=model).status_code == 200
    assert states(shared, "u/hangs") == {"u/hangs:F16": "downloading"}
    assert shared.client.post("/models/unload", json=model).json() == {"success": True}
    assert states(shared, "u/hangs") == {}


def test_no_download_outlives_its_server(route: Route) -> None:
    served = route("a")
    assert served.client.post("/models", json={"model": "u/hangs:F16"}).status_code == 200
    assert states(served)["u/hangs:F16"] == "downloading"
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
    assert served.survivors() == []


def test_a_busy_model_is_waited_for(route: Route) -> None:
    served = route("a", "b", models_max=1)
    started = threading.Event()

    def busy() -> int:
        n = 0
        with served.stream("slow", model="a", n_predict=100) as stream:
            for event in stream:
                started.set()
                n += len(event.get("tokens", ()))
        return n

    with ThreadPoolExecutor() as pool:
        first = pool.submit(busy)
        assert started.wait(40)
        second = asked(served, "b")
        assert first.done()
        assert first.result() == 100
    assert second.status_code == 200
    assert states(served) == {"a": "unloaded", "b": "loaded"}


def test_gateways_make_room_only_with_what_none_of_them_uses(route: Route) -> None:
    """Four streams of one model fall on either gateway, and so do four requests for another."""
    served = route("a", "b", ini="[*]\nparallel = 4\n", models_max=1, gateways=2)
    started = threading.Barrier(5)

    def busy(number: int) -> int:
        n = 0
        with served.stream(f"slow {number}", model="a", n_predict=100) as stream:
            for event in stream:
                if not n:
                    started.wait(40)
                n += len(event.get("tokens", ()))
        return n

    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(busy, number) for number in range(4)]
        started.wait(40)
        second = [pool.submit(asked, served, "b") for _ in range(4)]
        assert [one.result().status_code for one in second] == [200] * 4
        assert [one.result() for one in first] == [100] * 4


def test_a_model_that_cannot_start_fails_its_own_request_alone(shared: Served) -> None:
    served = shared
    assert asked(served, "plain").status_code == 200
    answer = asked(served, "broken")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == (
        "model name=broken failed to load: lora /no/such/file does not exist, "
        "or is closed to this user"
    )
    assert states(served, "plain", "broken") == {"plain": "loaded", "broken": "unloaded"}
    assert asked(served, "plain").status_code == 200


def test_a_killed_worker_of_a_loaded_model_comes_back(shared: Served) -> None:
    served = shared
    assert asked(served, "killed").status_code == 200
    served.wait_for("process ready child=killed-1")
    os.kill(served.pid_of("killed-1"), signal.SIGKILL)
    served.wait_for("process died child=killed-1 cause=.killed")
    assert asked(served, "killed").status_code == 200
    assert states(served, "killed") == {"killed": "loaded"}


def test_a_killed_gateway_is_told_what_runs(shared: Served) -> None:
    served = shared
    assert asked(served, "told").status_code == 200
    os.kill(served.pid_of("gateway"), signal.SIGKILL)
    served.wait_for("process died child=gateway")
    served.wait_for(r"gateway\.server listening")
    served.reconnect()
    assert states(served, "told", "untold") == {"told": "loaded", "untold": "unloaded"}
    assert eventually(lambda: asked(served, "told", n_predict=1).status_code == 200)


def test_what_is_to_be_there_from_the_start_is(shared: Served) -> None:
    assert eventually(lambda: states(shared, "first") == {"first": "loaded"})


def test_a_changed_preset_ends_the_model_that_runs_with_the_old_one(
    shared: Served,
) -> None:
    served = shared
    assert asked(served, "edited").status_code == 200
    (served.config.parent / "models.ini").write_text(INI.format(n_ctx=256) + "[new]\n")
    found = states(served, "edited", "new", query="?reload=1")
    assert found == {"edited": "unloaded", "new": "unloaded"}
    props = served.client.get("/props?model=edited").json()
    assert props["default_generation_settings"]["n_ctx"] == 128


def test_unloading_finishes_what_runs(shared: Served) -> None:
    served = shared
    assert asked(served, "ended").status_code == 200
    with served.stream("slow", model="ended", n_predict=50) as stream:
        first = next(stream)
        answer = served.client.post("/models/unload", json={"model": "ended"})
        assert answer.json() == {"success": True}
        *_, last = [first, *stream]
    assert last["tokens_predicted"] == 50
    assert eventually(lambda: states(served, "ended") == {"ended": "unloaded"})


def test_a_model_whose_file_is_gone_finishes_what_runs(shared: Served) -> None:
    served = shared
    assert asked(served, "gone").status_code == 200
    with served.stream("slow", model="gone", n_predict=50) as stream:
        first = next(stream)
        (served.config.parent / "models" / "gone.gguf").unlink()
        assert states(served, "gone", query="?reload=1") == {}
        *_, last = [first, *stream]
    assert last["tokens_predicted"] == 50


def test_a_model_that_does_not_go_in_time_is_killed(route: Route) -> None:
    # The stream that is cut waits for another worker of this model, and none comes.
    served = route("a", ini="[a]\nstop-timeout = 0\n", queue_timeout_s=5)
    assert asked(served, "a").status_code == 200
    with (
        pytest.raises(httpx.RemoteProtocolError),
        served.stream("endless", model="a", n_predict=100_000) as stream,
    ):
        for index, _ in enumerate(stream):
            if not index:
                served.client.post("/models/unload", json={"model": "a"})
    assert eventually(lambda: states(served) == {"a": "unloaded"})
