"""Faults on a whole pool: real processes, the fake backend, one fault each."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Serve, pools_in
from tests.e2e.process import Process, python
from tests.e2e.served import Served, eventually

pytestmark = pytest.mark.slow

SLOW = {"fake_step_ms": 20}


def finish(served: Served, prompt: str, started: threading.Event, **body: Any) -> list[Any]:
    """Stream to the end; sets `started` at the first event."""
    found = []
    with served.stream(prompt, **body) as stream:
        for event in stream:
            found.append(event)
            started.set()
    return found


def test_serves_drains_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder, config = tmp_path / "run", tmp_path / "pool.toml"
    config.write_text(
        f'runtime_dir = "{folder}"\n[gateway]\nport = 0\n[[worker]]\nbackend = "fake"\ncount = 2\n'
    )
    served = Served(python("-m", "worker.cli", "serve", "--config", str(config)))
    try:
        served.wait_until_ready()
        assert (folder / "pool.json").stat().st_mode & 0o777 == 0o600
        response = served.complete("Hello")
        assert response.status_code == 200
        assert len(response.json()["content"]) == 8
        served.signal(signal.SIGTERM)
        assert served.wait() == 0
        assert served.survivors() == []
        assert not folder.exists()
    finally:
        served.close()


def test_drain_finishes_what_runs(serve: Serve) -> None:
    served = serve(SLOW).wait_until_ready()
    started = threading.Event()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(finish, served, "slow", started, n_predict=50)
        assert started.wait(40)
        served.signal(signal.SIGTERM)
        last = running.result(60)[-1]
    assert last["stop"] is True
    assert last["tokens_predicted"] == 50
    assert served.wait() == 0
    assert served.survivors() == []


def test_second_ctrl_c_ends_at_once(serve: Serve) -> None:
    served = serve(SLOW).wait_until_ready()
    with served.stream("endless", n_predict=100_000) as stream:
        next(stream)
        served.signal(signal.SIGINT)
        served.wait_for("draining signal=SIGINT")
        served.signal(signal.SIGINT)
        assert served.wait() == 1
    assert served.survivors() == []


@pytest.fixture(scope="module")
def unlucky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Three models and a key; a worker for each test that kills or stops one, and one beside."""
    folder = tmp_path_factory.mktemp("unlucky")
    (folder / "keys").write_text("# keys\nright\n")
    workers = (
        {"name": "killed", "alias": "pair"},
        {"name": "whole", "alias": "pair"},
        {"name": "only", "alias": "single"},
        {"name": "stopped", "alias": "stalling", "stall_s": 1.0},
    )
    with pools_in(folder) as begin:
        slow = ({**worker, **SLOW} for worker in workers)
        served = begin(*slow, gateway={"api_key_file": ["keys"]}).wait_until_ready()
        served.client.headers["authorization"] = "Bearer right"
        yield served


@pytest.fixture(scope="module")
def narrow(serve_all: Serve) -> Served:
    """A pool of one slot, which has it free again after each test."""
    worker = {"name": "a", "n_slots": 1, **SLOW}
    return serve_all(worker, gateway={"continues": False}).wait_until_ready()


def test_killed_worker_comes_back_and_others_go_on(unlucky: Served) -> None:
    served = unlucky
    started = [threading.Event() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        running = [
            pool.submit(finish, served, f"stream {i}", event, model="pair", n_predict=60)
            for i, event in enumerate(started)
        ]
        assert all(event.wait(40) for event in started)
        os.kill(served.pid_of("killed"), signal.SIGKILL)
        served.wait_for("process died child=killed cause=.killed")
        served.wait_for("process ready child=killed")
        outcomes = [outcome(future) for future in running]
    assert set(outcomes) == {"whole"}
    assert eventually(served.is_idle)
    assert served.complete("again", model="pair").status_code == 200


def outcome(future: Any) -> str:
    """Return how a stream of 60 tokens ended."""
    try:
        last = future.result(60)[-1]
    except httpx.RemoteProtocolError:
        return "error"  # the body broke off, after the error event
    if "error" in last:
        return "error"
    return "whole" if last["tokens_predicted"] == 60 else "cut"


def test_stream_of_a_killed_worker_waits_for_the_next_one_and_goes_on(unlucky: Served) -> None:
    body = {"model": "single", "n_predict": 80}
    with unlucky.stream("goes on", **body) as stream:
        first = next(stream)
        os.kill(unlucky.pid_of("only"), signal.SIGKILL)
        text = first["content"] + "".join(event.get("content", "") for event in stream)
    unlucky.wait_for("process died child=only")
    assert text == unlucky.complete("goes on", **body).json()["content"]


def test_stream_of_a_killed_worker_that_may_not_go_on_ends_with_an_error_event(
    narrow: Served,
) -> None:
    served = narrow
    seen: list[dict[str, Any]] = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        served.stream("doomed", n_predict=100_000) as stream,
    ):
        for event in stream:
            if not seen:
                os.kill(served.pid_of("a"), signal.SIGKILL)
            seen.append(event)
    assert seen[-1]["error"]["code"] == 503
    served.wait_for("process ready child=a")
    assert eventually(lambda: served.complete("again").status_code == 200)


def test_stopped_worker_is_killed_and_replaced(unlucky: Served) -> None:
    os.kill(unlucky.pid_of("stopped"), signal.SIGSTOP)
    unlucky.wait_for("process makes no progress child=stopped")
    unlucky.wait_for("process died child=stopped cause=.stuck")
    unlucky.wait_for("process ready child=stopped")
    assert eventually(lambda: unlucky.complete("again", model="stalling").status_code == 200)


def test_hanging_engine_is_replaced(serve: Serve) -> None:
    # In a pool of its own: no request is blamed while workers die that did not have it.
    served = serve({"name": "a", "stall_s": 0.5}).wait_until_ready()
    response = served.complete("[[hang]]")
    assert response.status_code == 422  # two workers hung with it
    served.wait_for("process died child=a")
    served.wait_for("process ready child=a")
    assert eventually(lambda: served.complete("again").status_code == 200)


def test_killed_gateway_comes_back_and_workers_find_it(narrow: Served) -> None:
    served = narrow
    worker = served.pid_of("a")
    os.kill(served.pid_of("gateway"), signal.SIGKILL)
    served.wait_for("process died child=gateway")
    url = served.wait_for(r"gateway\.server listening url=(\S+)")[1]
    with httpx.Client(base_url=url) as client:
        assert eventually(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/completion", json={"prompt": "x", "n_predict": 1}).status_code == 200
    os.kill(worker, 0)
    served.reconnect()


def test_kill_9_of_the_supervisor_leaves_nobody(serve: Serve) -> None:
    served = serve({"count": 2}).wait_until_ready()
    served.signal(signal.SIGKILL)
    served.wait()
    assert served.survivors() == []


def test_answers_503_while_the_model_loads_and_ends_soon_then(serve: Serve) -> None:
    served = serve({"fake_load_ms": 60_000})
    url = served.wait_for(r"listening url=(\S+)")[1]
    served.wait_for_count("process ready child=gateway", 1)  # before or after the line above
    response = httpx.get(f"{url}/health")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "Loading model"
    served.signal(signal.SIGTERM)
    assert served.wait(30) == 0  # the load takes a minute
    assert served.survivors() == []


def test_port_in_use_is_one_line_and_78(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serve({}, gateway={"port": port})
        assert served.wait() == 78
    (line,) = [line for line in served.lines if "cannot listen on" in line]
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line
    assert "Traceback" not in served.text
    assert served.survivors() == []


@pytest.fixture
def command() -> Iterator[Any]:
    """Run `llamapool serve` with arguments of its own."""
    running: list[Process] = []

    def begin(*args: str, **env: str) -> Process:
        running.append(Process(python("-m", "worker.cli", "serve", *args), env))
        return running[-1]

    yield begin
    for process in running:
        process.close()


@pytest.mark.parametrize(
    ("args", "env", "code", "words"),
    [
        (["-m", "no/such.gguf"], {}, 78, "no/such.gguf does not exist"),
        (["--config", "no/such.toml"], {}, 78, "cannot read no/such.toml"),
        ([], {"LLAMA_ARG_PORT": "x"}, 78, "LLAMA_ARG_PORT"),
        (["--port", "70000"], {}, 2, "--port"),
    ],
)
def test_mistakes_are_one_clear_line(
    command: Any, args: list[str], env: dict[str, str], code: int, words: str
) -> None:
    process = command(*args, **env)
    assert process.wait() == code
    assert words in process.text
    assert "Traceback" not in process.text
    if code == 78:
        assert len(process.lines) == 1


def test_models_answer_by_name(unlucky: Served) -> None:
    listed = unlucky.client.get("/v1/models").json()["data"]
    assert sorted(model["id"] for model in listed) == ["pair", "single", "stalling"]
    for name in ("pair", "single", "stalling"):
        body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        response = unlucky.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["model"] == name
    body = {"model": "gamma", "prompt": "x"}
    response = unlucky.client.post("/v1/completions", json=body)
    assert response.status_code in (400, 404)
    assert "gamma" in response.json()["error"]["message"]


def test_wrong_key_is_401(unlucky: Served) -> None:
    for key, status in (("", 401), ("wrong", 401), ("right", 200)):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = {"model": "pair", "prompt": "x", "n_predict": 8}
        answer = httpx.post(f"{unlucky.url}/completion", json=body, headers=headers)
        assert answer.status_code == status


def test_client_that_leaves_its_stream_frees_the_slot(narrow: Served) -> None:
    with narrow.stream("endless", n_predict=100_000) as stream:
        next(stream)
        assert not narrow.is_idle()
    assert eventually(narrow.is_idle)


def test_client_that_leaves_while_it_waits_frees_the_slot(narrow: Served) -> None:
    with pytest.raises(httpx.ReadTimeout):
        body = {"prompt": "endless", "n_predict": 100_000}
        httpx.post(f"{narrow.url}/completion", json=body, timeout=0.5)
    assert eventually(narrow.is_idle)


def test_a_stopped_supervisor_holds_nobody_up(serve: Serve) -> None:
    served = serve({"verbose_prompt": True, "n_ctx": 131_072}).wait_until_ready()
    served.signal(signal.SIGSTOP)
    for _ in range(40):  # each prompt is a log line of 20 kB; a log's pipe has room for 256
        assert served.complete("x" * 20_000, n_predict=1).status_code == 200
    served.signal(signal.SIGCONT)
    assert eventually(
        lambda: served.complete("y").is_success and "log lines dropped" in served.text
    )
    served.signal(signal.SIGTERM)
    assert served.wait() == 0
