"""The gateway as a process: start, address, drain, refusals to start."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway import server
from gateway.server import limit_threads
from gateway.settings import gateway_config, load_pool
from protocol.config.config import GatewayConfig, PoolConfig
from protocol.errors import ConfigError
from protocol.process.listening import listen, url_of
from protocol.process.notify import Notifier
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.inprocess import running

pytestmark = pytest.mark.slow

LIMIT_S = 20.0


class GatewayProcess:
    """`python -m gateway` and what it reported."""

    def __init__(self, process: asyncio.subprocess.Process, reports: socket.socket) -> None:
        self._process = process
        self._reports = reports
        self.endpoint = ""
        self.url = ""

    async def listening(self) -> None:
        """Wait until it says where it listens."""
        async with asyncio.timeout(LIMIT_S):
            while not self.url:
                data = await asyncio.get_running_loop().sock_recv(self._reports, 4096)
                fields = dict(line.split("=", 1) for line in data.decode().splitlines())
                self.url = fields.get("X_URL", "")

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def ended(self) -> tuple[int, str]:
        """Wait for the end; returns exit code and log."""
        async with asyncio.timeout(LIMIT_S):
            _, log = await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode, log.decode()

    def kill(self) -> None:
        """End it if it still runs."""
        if self._process.returncode is None:
            self._process.kill()


@asynccontextmanager
async def started(folder: Path, *flags: str, **settings: object) -> AsyncIterator[GatewayProcess]:
    """Start a gateway on an ephemeral port with these settings."""
    endpoint = f"ipc://{folder}/w.sock"
    path = folder / "pool.json"
    path.write_text(json.dumps({"gateway": {"port": 0, "bind": [endpoint], **settings}}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.setblocking(False)
        reports.bind(str(folder / "notify"))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway",
            "--config",
            str(path),
            *flags,
            env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        one = GatewayProcess(process, reports)
        one.endpoint = endpoint
        try:
            yield one
        finally:
            one.kill()
            await process.wait()


async def _until_status(client: httpx.AsyncClient, status: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await client.get("/readyz")).json()["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_listens_serves_and_leaves_on_a_signal(tmp_path: Path) -> None:
    async with started(tmp_path) as gateway:
        await gateway.listening()
        async with (
            httpx.AsyncClient(base_url=gateway.url) as client,
            FakeWorker(gateway.endpoint),
        ):
            await _until_status(client, "ready")
            answer = await client.post("/completion", json={"prompt": "a b"})
            assert answer.json()["content"] == "a b"
            gateway.signal()
            code, log = await gateway.ended()
    assert code == 0
    assert f"listening url={gateway.url}" in log
    assert re.search(r"request done .*method=POST path=/completion status=200", log)


async def test_pages_begin_with_the_settings_of_the_server(tmp_path: Path) -> None:
    async with running(tmp_path, ui_config='{"theme": "dark"}') as gateway:
        await gateway.add_worker()
        assert (await gateway.client.get("/props")).json()["ui_settings"] == {"theme": "dark"}


@pytest.mark.parametrize("text", ["{", "[]"])
def test_settings_of_pages_must_be_an_object(text: str) -> None:
    with pytest.raises(ConfigError, match="--ui-config must be a JSON object"):
        server.run(GatewayConfig(ui_config=text, port=0), Notifier.from_environ())


def test_work_beside_the_loop_gets_the_threads_that_were_asked_for() -> None:
    async def idents() -> list[int]:
        work = [asyncio.to_thread(threading.get_ident) for _ in range(50)]
        return await asyncio.gather(*work)

    with asyncio.Runner() as runner:
        limit_threads(runner.get_loop(), 1)
        assert len(set(runner.run(idents()))) == 1


async def test_no_line_tells_of_a_request_if_none_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_LOG_DISABLE", "1")
    async with started(tmp_path) as gateway:
        await gateway.listening()
        async with httpx.AsyncClient(base_url=gateway.url) as client:
            assert (await client.get("/livez")).status_code == 200
        gateway.signal()
        code, log = await gateway.ended()
    assert code == 0
    assert f"listening url={gateway.url}" in log
    assert "request done" not in log


@pytest.mark.parametrize("drain_timeout_s", [0.2, 0.8])
async def test_a_drain_ends_running_streams_at_its_limit(
    tmp_path: Path, drain_timeout_s: float
) -> None:
    options = FakeOptions(step_s=0.01)
    async with started(tmp_path, drain_timeout_s=drain_timeout_s) as gateway:
        await gateway.listening()
        async with (
            httpx.AsyncClient(base_url=gateway.url) as client,
            FakeWorker(gateway.endpoint, options),
        ):
            await _until_status(client, "ready")
            body = {"prompt": "a b", "ignore_eos": True, "stream": True}
            async with client.stream("POST", "/completion", json=body) as response:
                parts = response.aiter_text()
                text = await anext(parts)
                began_at = asyncio.get_running_loop().time()
                gateway.signal()
                with pytest.raises(httpx.RemoteProtocolError):
                    async for part in parts:
                        text += part
            code, log = await gateway.ended()
            took_s = asyncio.get_running_loop().time() - began_at
    assert code == 0
    assert '"type":"unavailable_error"' in text
    (line,) = re.findall(r"request done .*path=/completion.*", log)
    assert " status=200 " in line
    assert line.endswith('finish=unavailable cause="The server is shutting down"')
    assert drain_timeout_s * 0.9 <= took_s < drain_timeout_s + 15


async def test_a_drain_lets_what_runs_finish(tmp_path: Path) -> None:
    async with started(tmp_path, drain_timeout_s=30) as gateway:
        await gateway.listening()
        async with (
            httpx.AsyncClient(base_url=gateway.url) as client,
            FakeWorker(gateway.endpoint, FakeOptions(step_s=0.01)),
        ):
            await _until_status(client, "ready")
            body = {"prompt": "a b", "ignore_eos": True, "n_predict": 50, "stream": True}
            async with client.stream("POST", "/completion", json=body) as response:
                parts = response.aiter_text()
                text = await anext(parts)
                gateway.signal()
                async for part in parts:
                    text += part
            code, log = await gateway.ended()
    assert code == 0
    assert '"tokens_predicted":50,' in text and '"stop":true' in text
    (line,) = re.findall(r"request done .*path=/completion.*", log)
    assert " status=200 duration_s=" in line, "the last answer is logged when it has ended"


async def test_a_drain_does_not_wait_for_a_stream_that_nobody_reads(tmp_path: Path) -> None:
    async with started(tmp_path, drain_timeout_s=600) as gateway:
        await gateway.listening()
        async with (
            httpx.AsyncClient(base_url=gateway.url) as client,
            FakeWorker(gateway.endpoint, FakeOptions(step_s=0.01)),
        ):
            await _until_status(client, "ready")
            body = {"prompt": "a b", "ignore_eos": True, "stream": True}
            kept = {"X-Conversation-Id": "c"}
            async with client.stream("POST", "/completion", json=body, headers=kept) as response:
                await anext(response.aiter_text())
            (row,) = (
                await client.post("/v1/streams/lookup", json={"conversation_ids": ["c"]})
            ).json()
            gateway.signal()
            code, log = await gateway.ended()
    assert code == 0 and not row["is_done"]
    assert "not drained" not in log


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with started(tmp_path, drain_timeout_s=60) as gateway:
        await gateway.listening()
        async with (
            httpx.AsyncClient(base_url=gateway.url) as client,
            FakeWorker(gateway.endpoint, FakeOptions(step_s=0.01)),
        ):
            await _until_status(client, "ready")
            body = {"prompt": "a", "ignore_eos": True, "stream": True}
            async with client.stream("POST", "/completion", json=body) as response:
                parts = response.aiter_text()  # held: to drop it would be to close the stream
                await anext(parts)
                gateway.signal()
                await _until_status(client, "draining")
                gateway.signal(signal.SIGINT)
                code, log = await gateway.ended()
    assert code == 1, log


async def test_a_port_in_use_is_one_line_and_78(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with started(tmp_path, "--port", str(port)) as gateway:
            code, log = await gateway.ended()
    assert code == 78
    assert log == (
        f"llamapool gateway: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose another with --port, or --port 0\n"
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid:0"),
        (["--host", "203.0.113.7"], "cannot listen on 203.0.113.7:0"),
        (["--api-key-file", "/nonexistent/keys"], "cannot read api_key_file /nonexistent/keys"),
        (["--bind", "tcp://127.0.0.1:0"], "tcp://127.0.0.1:0"),
    ],
)
async def test_what_cannot_work_is_one_line_and_78(
    tmp_path: Path, flags: list[str], words: str
) -> None:
    async with started(tmp_path, *flags) as gateway:
        code, log = await gateway.ended()
    assert code == 78
    assert words in log and log.count("\n") == 1


@pytest.mark.parametrize("key", [(), ("",), (",",)])
def test_where_a_key_is_required_others_are_not_let_in_without_one(key: tuple[str, ...]) -> None:
    config = GatewayConfig(host="0.0.0.0", port=0, api_key=key, require_key=True)
    with pytest.raises(ConfigError, match="--no-require-key"):
        server.run(config, Notifier.from_environ())


@pytest.mark.parametrize("text", ["a", "a,b", ",a"])
def test_a_key_in_any_setting_closes_the_server(text: str) -> None:
    assert GatewayConfig(api_key=(text,)).has_keys
    assert GatewayConfig(api_key_admin=(text,)).has_keys
    assert GatewayConfig(api_key_file=(text,)).has_keys


def test_tls_needs_both_files() -> None:
    with pytest.raises(ConfigError, match="belong together"):
        listen(GatewayConfig(port=0, ssl_key_file="key.pem"))


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:")]
)
def test_the_address_is_one_that_a_client_can_use(host: str, shown: str) -> None:
    config = GatewayConfig(host=host, port=0)
    (sock,) = listen(config)
    with sock:
        assert url_of(sock, config).startswith(shown)


def test_flags_stand_above_the_environment_above_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.toml"
    path.write_text('[gateway]\nhost = "a"\nport = 1\nbind = ["ipc://x"]\napi_key_file = ["k"]\n')
    monkeypatch.setenv("LLAMA_ARG_PORT", "2")
    monkeypatch.setenv("LLAMA_ARG_HOST", "b")
    monkeypatch.delenv("LLAMAPOOL_PARENT", raising=False)
    config = gateway_config(load_pool(path), {"port": 3, "bind": ()})
    assert (config.host, config.port, config.bind) == ("b", 3, (f"ipc://{tmp_path}/x",))
    assert config.api_key_file == (str(tmp_path / "k"),)
    monkeypatch.setenv("LLAMAPOOL_PARENT", "1")
    assert gateway_config(load_pool(path), {}).port == 1


def test_a_runtime_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    pool = PoolConfig(runtime_dir=str(tmp_path))
    assert gateway_config(pool, {}).bind == (f"ipc://{tmp_path}/workers.sock",)
    tmp_path.chmod(0o770)
    with pytest.raises(ConfigError, match="is writable by others"):
        gateway_config(pool, {})


def test_without_an_endpoint_for_workers_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    with pytest.raises(ConfigError, match="set --bind"):
        gateway_config(load_pool(None), {})
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/llamapool")
    assert gateway_config(load_pool(None), {}).bind == ("ipc:///run/llamapool/workers.sock",)
    with pytest.raises(ConfigError, match="port"):
        gateway_config(load_pool(None), {"port": 99999})
