"""The admin API over real HTTP: who gets in, what it shows, and what it asks of the supervisor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import build_app
from gateway.fleet.admin_listener import AdminListener
from gateway.parts import parts_of
from protocol.config.config import GatewayConfig
from protocol.process.control import (
    AbortOrder,
    FleetReport,
    GoldenQuestion,
    Line,
    ProcessReport,
    Reply,
    RolloutOrder,
    Subscribe,
    WorkerOrder,
    decode,
    encode,
)
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until

ADMIN = {"Authorization": "Bearer boss"}
GETS = ("/admin/status", "/admin/workers", "/admin/quarantine", "/admin/rollout")
POSTS = ("/admin/drain", "/admin/undrain", "/admin/rollout", "/admin/rollout/abort")
ORDERS = (("GET", GETS), ("POST", POSTS), ("DELETE", ("/admin/quarantine",)))
REPORT = FleetReport(
    processes=(
        ProcessReport(name="gateway", model="", state="ready", pid=7),
        ProcessReport(name="h/w0", model="fake", state="ready", pid=8, n_restarts=2),
        ProcessReport(name="h/w1", model="fake", state="quarantined", retry_s=9, why="it died"),
    )
)


class Supervisor:
    """The other end of the control channel."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "control.sock")
        self.lines: list[Line] = []
        self.reply = Reply(id=0)
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Supervisor":
        self._server = await asyncio.start_unix_server(self._converse, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        assert self._server is not None
        self._server.close()

    def send(self, line: Line) -> None:
        assert self._writer is not None
        self._writer.write(encode(line))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        while data := await reader.readline():
            line = decode(data)
            self.lines.append(line)
            if isinstance(line, Subscribe):
                self.send(REPORT)
            elif isinstance(line, WorkerOrder | RolloutOrder | AbortOrder):
                reply = self.reply
                self.send(Reply(id=line.id, error=reply.error, is_unknown=reply.is_unknown))


@asynccontextmanager
async def administered(folder: Path, **settings: Any) -> AsyncIterator[tuple[Running, Supervisor]]:
    settings = {"api_key": ("user",), "api_key_admin": ("boss",), **settings}
    async with (
        Supervisor(folder) as supervisor,
        running(folder, control=supervisor.path, **settings) as gateway,
    ):
        await gateway.add_worker(FakeOptions(name="h/w0"))
        await until(lambda: any(isinstance(one, Subscribe) for one in supervisor.lines))
        yield gateway, supervisor


async def test_only_an_admins_key_gets_in(tmp_path: Path) -> None:
    async with administered(tmp_path) as (gateway, supervisor):
        for method, paths in ORDERS:
            for path in paths:
                for headers, status in (({}, 401), ({"X-Api-Key": "user"}, 403)):
                    answer = await gateway.client.request(method, path, headers=headers)
                    assert answer.status_code == status, (method, path, headers)
        assert len(supervisor.lines) == 1


async def test_without_keys_tcp_is_closed_whoever_asks(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        for method, paths in ORDERS:
            for path in paths:
                answer = await gateway.client.request(method, path)
                assert answer.status_code == 403, (method, path)
                assert answer.json()["error"]["type"] == "permission_error"


async def test_the_status_puts_pool_and_processes_together(tmp_path: Path) -> None:
    async with administered(tmp_path) as (gateway, _):
        shown: dict[str, Any] = {}
        while not shown.get("gateways") or shown["gateways"][0]["pid"] != 7:
            shown = (await gateway.client.get("/admin/status", headers=ADMIN)).json()
        first, second = shown["workers"]
        assert (first["name"], first["host"], first["state"]) == ("h/w0", "h", "ready")
        assert (first["n_slots"], first["n_restarts"], first["is_supervised"]) == (2, 2, True)
        assert (second["state"], second["retry_s"], second["why"]) == ("quarantined", 9, "it died")
        assert shown["status"] == "ok"
        assert shown["n_quarantined"] == 0
        assert shown["rollout"]["state"] == "none"


async def test_orders_reach_the_supervisor_and_its_refusals_the_client(tmp_path: Path) -> None:
    async with administered(tmp_path) as (gateway, supervisor):
        answer = await gateway.post(
            "/admin/drain", {"worker": "h/w0", "force": True}, headers=ADMIN
        )
        assert answer.json() == {"success": True}
        order = supervisor.lines[-1]
        assert isinstance(order, WorkerOrder)
        assert (order.verb, order.worker, order.force) == ("drain", "h/w0", True)
        supervisor.reply = Reply(id=0, error="it is busy")
        answer = await gateway.post("/admin/rollout", {"golden": [{"prompt": "x"}]}, headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "it is busy")
        supervisor.reply = Reply(id=0, error="no worker is named 'x'", is_unknown=True)
        answer = await gateway.post("/admin/drain", {"worker": "x"}, headers=ADMIN)
        assert answer.status_code == 404
        assert answer.json()["error"]["param"] == "worker"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/admin/drain", {}, "worker"),
        ("/admin/drain", {"worker": 5}, "worker"),
        ("/admin/drain", {"worker": "w" * 300}, "worker"),
        ("/admin/drain", {"worker": "w", "force": "yes"}, "force"),
        ("/admin/rollout", {"golden": [{"prompt": 1}]}, "golden[0].prompt"),
        ("/admin/rollout", {"golden": [{"prompt": "x", "answer": []}]}, "golden[0].answer"),
        ("/admin/rollout", {"golden": [{"prompt": "x"}] * 17}, "golden"),
        ("/admin/rollout", {"golden": {}}, "golden"),
        ("/admin/rollout", {"surge": "maybe"}, "surge"),
        ("/admin/rollout", {"options": []}, "options"),
        ("/admin/rollout", {"config": 1}, "config"),
        ("/admin/rollout", {"only_chnaged": True}, "only_chnaged"),
        ("/admin/rollout", {"golden": [{"prompt": "x", "anser": "y"}]}, "golden[0].anser"),
        ("/admin/drain", {"worker": "h/w0", "forse": True}, "forse"),
        ("/admin/undrain", {"worker": "h/w0", "": 1}, ""),
    ],
)
async def test_a_wrong_field_is_named(tmp_path: Path, path: str, body: Any, param: str) -> None:
    async with administered(tmp_path) as (gateway, supervisor):
        answer = await gateway.post(path, body, headers=ADMIN)
        assert answer.status_code == 400
        assert answer.json()["error"].get("param") == param, answer.text
        assert len(supervisor.lines) == 1


@pytest.mark.parametrize(
    ("method", "query", "param"),
    [
        *(("GET", f"{path}?pretty=1", "pretty") for path in GETS),
        *(("POST", f"{path}?dry_run=1", "dry_run") for path in POSTS),
        ("DELETE", "/admin/quarantine?fingerprnt=00", "fingerprnt"),
        ("DELETE", "/admin/quarantine?fingerprint=", "fingerprint"),
        ("DELETE", "/admin/quarantine?fingerprint=00&fingerprint=11", "fingerprint"),
        ("GET", "/admin/requests?stat=queued", "stat"),
        ("GET", "/admin/requests?limit=1&limit=2", "limit"),
        ("GET", "/admin/requests/x?limit=1", "limit"),
        ("GET", "/admin/usage?form=2026-01-01", "form"),
        ("GET", "/v1/usage?key=other", "key"),
        ("GET", "/v1/usage?by=day&by=model", "by"),
    ],
)
async def test_a_parameter_that_is_unknown_or_comes_twice_is_named(
    tmp_path: Path, method: str, query: str, param: str
) -> None:
    async with administered(tmp_path, usage_dir=str(tmp_path / "usage")) as (gateway, supervisor):
        answer = await gateway.client.request(method, query, headers=ADMIN)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"].get("param") == param, answer.text
        assert len(supervisor.lines) == 1


@pytest.mark.parametrize(
    ("query", "message"),
    [("", "no request is refused"), ("?fingerprint=00", "no request of this fingerprint")],
)
async def test_nothing_to_let_in_again_is_a_404_that_says_so(
    tmp_path: Path, query: str, message: str
) -> None:
    async with administered(tmp_path) as (gateway, _):
        path = f"/admin/quarantine{query}"
        answer = await gateway.client.request("DELETE", path, headers=ADMIN)
        assert answer.status_code == 404 and message in answer.json()["error"]["message"]


async def test_endpoints_of_other_servers_ignore_parameters_that_they_do_not_know(
    tmp_path: Path,
) -> None:
    async with administered(tmp_path) as (gateway, _):
        for path in ("/health", "/v1/models", "/props", "/slots", "/lora-adapters"):
            answer = await gateway.client.get(f"{path}?pretty=1&pretty=2", headers=ADMIN)
            assert answer.status_code == 200, path


async def test_files_and_options_need_the_socket_and_not_a_key(tmp_path: Path) -> None:
    async with administered(tmp_path) as (gateway, supervisor):
        for body in ({"config": "/etc/x.toml"}, {"options": {"worker.n_ctx": 5}}):
            answer = await gateway.post("/admin/rollout", body, headers=ADMIN)
            assert answer.status_code == 403
        assert len(supervisor.lines) == 1


async def test_the_socket_needs_no_key_and_opens_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    config = GatewayConfig(
        bind=(f"ipc://{tmp_path}/w.sock",),
        api_key=("user",),
        admin_socket=str(path),
        api_prefix="/llama",
    )
    async with administered(tmp_path / "", api_prefix="/llama") as (gateway, supervisor):
        parts = parts_of(config, gateway.metrics)
        app = build_app(config, parts, gateway.metrics)
        listener = AdminListener(app, config)
        await listener.start()
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert path.stat().st_mode & 0o777 == 0o600
            assert (await client.get("/admin/status")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 401
            answer = await client.post("/admin/rollout", json={"options": {"worker.n_ctx": 5}})
            assert answer.status_code == 501  # this second gateway has no supervisor
        await listener.close()
        assert not path.exists()
        assert supervisor.lines


async def test_a_golden_prompt_goes_to_the_worker_that_is_named(tmp_path: Path) -> None:
    async with administered(tmp_path) as (gateway, supervisor):
        held = await gateway.add_worker(FakeOptions(name="h/new", is_held=True, ready=False))
        await held.ready()
        supervisor.send(GoldenQuestion(id=5, worker="h/new", prompt="a b c", n_predict=2))
        await until(lambda: "answered" in encode(supervisor.lines[-1]).decode())
        assert encode(supervisor.lines[-1]) == (
            b'{"kind": "answered", "id": 5, "text": "a b", "error": ""}\n'
        )
        assert [type(one.payload).__name__ for one in held.envelopes] == ["Generate"]


async def test_without_a_supervisor_orders_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("boss",)) as gateway:
        worker = await gateway.add_worker(FakeOptions(name="far/w"))
        answer = await gateway.post("/admin/rollout", {}, headers=ADMIN)
        assert answer.status_code == 501
        assert (await gateway.post("/admin/undrain", {"worker": "far/w"}, headers=ADMIN)).is_error
        answer = await gateway.post("/admin/drain", {"worker": "w", "force": True}, headers=ADMIN)
        assert answer.json() == {"success": True}
        await worker.until(lambda w: any(type(one).__name__ == "Drain" for one in w.received))


async def test_the_only_worker_of_a_model_on_another_host_is_drained_by_force_alone(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, api_key=("boss",)) as gateway:
        await gateway.add_worker(FakeOptions(name="far/w"))
        refused = await gateway.post("/admin/drain", {"worker": "far/w"}, headers=ADMIN)
        assert refused.status_code == 400
        assert "'far/w' is the only worker of 'fake'" in refused.json()["error"]["message"]
        await gateway.add_worker(FakeOptions(name="near/w"))
        ambiguous = await gateway.post("/admin/drain", {"worker": "w"}, headers=ADMIN)
        assert ambiguous.is_error
        answer = await gateway.post("/admin/drain", {"worker": "far/w"}, headers=ADMIN)
        assert answer.json() == {"success": True}


async def test_the_supervisor_hears_which_models_other_hosts_serve(tmp_path: Path) -> None:
    async with administered(tmp_path) as (gateway, supervisor):
        await gateway.post("/admin/drain", {"worker": "h/w0"}, headers=ADMIN)
        await gateway.add_worker(FakeOptions(name="far/w0"))
        await gateway.post("/admin/drain", {"worker": "h/w0"}, headers=ADMIN)
        orders = [one for one in supervisor.lines if isinstance(one, WorkerOrder)]
        assert [one.served_elsewhere for one in orders] == [(), ("fake",)]
