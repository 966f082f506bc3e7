"""Where the gateway listens: several addresses, Unix sockets, one port shared, TLS."""

import asyncio
import contextlib
import errno
import shutil
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from gateway import server
from gateway.http import http_server
from gateway.metrics.counters import ConnectionCounts
from gateway.server import server_config
from protocol.config.config import GatewayConfig
from protocol.config.limits import LimitsConfig
from protocol.errors import ConfigError
from protocol.process.listening import Listeners, is_local, listen, url_of
from tests.gateway.inprocess import LIMIT_S, running, until

NEEDS_OPENSSL = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed"
)


def test_several_addresses_share_the_port_that_the_system_chose(tmp_path: Path) -> None:
    path = tmp_path / "llama.sock"
    config = GatewayConfig(host=f"127.0.0.1, 127.0.0.2,{path}", port=0)
    first, second, unix = listen(config)
    with first, second, unix:
        assert first.getsockname()[1] == second.getsockname()[1]
        assert second.getsockname()[0] == "127.0.0.2"
        assert unix.getsockname() == str(path)
        assert url_of(unix, config) == f"unix:{path}"
    assert is_local(config)
    assert not is_local(GatewayConfig(host="127.0.0.1,0.0.0.0"))


@pytest.mark.parametrize(
    ("host", "bound", "usable"),
    [
        ("0.0.0.0", "0.0.0.0", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2", "127.0.0.2"),
    ],
)
def test_every_address_is_told_as_such_and_as_one_to_go_to(
    host: str, bound: str, usable: str
) -> None:
    config = GatewayConfig(host=host, port=0)
    with closing(Listeners(listen(config), config, is_ours=True)) as listeners:
        port = listeners.socks[0].getsockname()[1]
        assert listeners.bound_urls == (f"http://{bound}:{port}",)
        assert listeners.urls == (f"http://{usable}:{port}",)


async def test_a_client_comes_in_by_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "llama.sock"
    async with running(tmp_path, host=f"127.0.0.1,{path}") as gateway:
        await gateway.add_worker()
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            answer = await client.post("/completion", json={"prompt": "a b"})
            assert answer.json()["content"] == "a b"


def test_a_dead_servers_socket_is_taken_over_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "llama.sock"
    config = GatewayConfig(host=str(path))
    (sock,) = listen(config)
    with pytest.raises(ConfigError, match=r"llama\.sock: Address already in use"):
        listen(config)
    sock.close()
    (again,) = listen(config)
    again.close()
    path.unlink()
    path.write_text("a file")
    with pytest.raises(ConfigError, match="cannot listen"):
        listen(config)


def test_a_living_server_without_room_for_connections_is_noticed_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "llama.sock")
    with socket.socket(socket.AF_UNIX) as theirs, contextlib.ExitStack() as clients:
        theirs.bind(path)
        theirs.listen(0)
        for _ in range(2):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            found = client.connect_ex(path)
        assert found == errno.EAGAIN
        with ThreadPoolExecutor(1) as thread:
            start = thread.submit(listen, GatewayConfig(host=path))
            done, _ = wait([start], 5.0)
            theirs.close()  # ends a start that waits
            assert done
        with pytest.raises(ConfigError, match="Address already in use"):
            start.result()


def test_a_port_is_shared_only_if_that_was_asked() -> None:
    with socket.socket() as theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        port = theirs.getsockname()[1]
        with pytest.raises(ConfigError, match="choose another with --port"):
            listen(GatewayConfig(port=port))
        (sock,) = listen(GatewayConfig(port=port, reuse_port=True))
        sock.close()


def test_tls_files_that_cannot_serve_end_the_start(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")
    (tmp_path / "cert.pem").write_text("no certificate")
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    with pytest.raises(ConfigError, match="belong together"):
        listen(GatewayConfig(port=0, ssl_cert_file=cert))
    with pytest.raises(ConfigError, match=r"cannot use ssl_key_file .*, ssl_cert_file .*: "):
        listen(GatewayConfig(port=0, ssl_key_file=key, ssl_cert_file=cert))
    with pytest.raises(ConfigError, match=r"ssl_key_file .*key\.pemx does not exist"):
        listen(GatewayConfig(port=0, ssl_key_file=f"{key}x", ssl_cert_file=cert))


@NEEDS_OPENSSL
def test_an_encrypted_tls_key_ends_the_start_and_asks_nobody(tmp_path: Path) -> None:
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-subj", "/CN=a.test"]
    files = ["-passout", "pass:word", "-keyout", key, "-out", cert]
    subprocess.run([*request, *files], check=True, capture_output=True)
    with pytest.raises(ConfigError, match=r"ssl_key_file .*key\.pem is encrypted"):
        listen(GatewayConfig(port=0, ssl_key_file=key, ssl_cert_file=cert))


def test_a_tls_handshake_has_the_time_of_a_requests_head() -> None:
    config = GatewayConfig(limits=LimitsConfig(head_s=3.0))
    assert server_config(config, ConnectionCounts()).ssl_handshake_timeout == 3.0


async def certified(folder: Path) -> dict[str, str]:
    """Make a key and a certificate; return the settings that name them."""
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names]
    openssl = await asyncio.create_subprocess_exec(
        *request, "-keyout", key, "-out", cert, stderr=subprocess.DEVNULL
    )
    assert await openssl.wait() == 0
    return {"ssl_key_file": key, "ssl_cert_file": cert}


@pytest.mark.slow
@NEEDS_OPENSSL
async def test_https_is_served_with_key_and_certificate(tmp_path: Path) -> None:
    files = await certified(tmp_path)
    async with running(tmp_path, **files) as gateway:
        assert gateway.url.startswith("https://")
        context = ssl.create_default_context(cafile=files["ssl_cert_file"])
        async with httpx.AsyncClient(verify=context) as client:
            assert (await client.get(f"{gateway.url}/livez")).status_code == 200


def ask(url: str, files: dict[str, str]) -> ssl.SSLSocket:
    """Ask once and keep the connection, without reading on."""
    return ask_over(socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)), files)


def ask_over(connection: socket.socket, files: dict[str, str]) -> ssl.SSLSocket:
    """Shake hands, ask once and keep the connection."""
    context = ssl.create_default_context(cafile=files["ssl_cert_file"])
    tls = context.wrap_socket(connection, server_hostname="127.0.0.1")
    tls.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert tls.recv(4096).startswith(b"HTTP/1.1 200")
    return tls


@pytest.mark.slow
@NEEDS_OPENSSL
async def test_an_idle_client_of_https_is_let_go_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.1)
    files = await certified(tmp_path)
    async with running(tmp_path, **files) as gateway:
        client = await asyncio.to_thread(ask, gateway.url, files)
        async with asyncio.timeout(LIMIT_S / 3):
            await until(lambda: gateway.metrics.connections.n_open == 0)
        client.close()


@pytest.mark.slow
@NEEDS_OPENSSL
async def test_no_idle_client_of_https_is_waited_for(tmp_path: Path) -> None:
    """Such a client says goodbye only when it reads again, as a pool of connections does."""
    files = await certified(tmp_path)
    async with running(tmp_path, limits=LimitsConfig(connections=1), **files) as gateway:
        first = await asyncio.to_thread(ask, gateway.url, files)
        second = await asyncio.to_thread(ask, gateway.url, files)  # in place of the first
        async with asyncio.timeout(LIMIT_S / 3):
            await until(lambda: gateway.metrics.connections.n_open == 1)
            await gateway.server.close(grace_s=LIMIT_S)
        first.close()
        second.close()


@pytest.mark.slow
@NEEDS_OPENSSL
async def test_a_client_of_https_that_leaves_many_answers_is_no_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that sent 200 requests and left was 370 lines, and needed no key."""
    files = await certified(tmp_path)
    async with running(tmp_path, **files) as gateway:
        client = await asyncio.to_thread(ask, gateway.url, files)
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200)
        client.close()
        async with asyncio.timeout(LIMIT_S):
            await until(lambda: gateway.metrics.connections.n_open == 0)
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []


@pytest.mark.slow
@NEEDS_OPENSSL
async def test_unfinished_handshakes_keep_no_client_of_https_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are connections too: as many as there were descriptors kept all others out for 10 s."""
    monkeypatch.setattr(http_server, "_FEW_HANDSHAKES", 2)
    files = await certified(tmp_path)
    async with running(tmp_path, limits=LimitsConfig(connections=3), **files) as gateway:
        address = ("127.0.0.1", httpx.URL(gateway.url).port or 0)
        halves = [await asyncio.open_connection(*address) for _ in range(6)]
        for reader, _ in halves[:3]:
            assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
        (await asyncio.to_thread(ask, gateway.url, files)).close()
        assert not halves[-1][0].at_eof()
        for _, writer in halves:
            writer.transport.abort()


@pytest.mark.slow
@NEEDS_OPENSSL
async def test_a_client_whose_handshake_has_begun_is_served_by_a_server_that_retires(
    tmp_path: Path,
) -> None:
    files = await certified(tmp_path)
    async with running(tmp_path, **files) as gateway:
        address = ("127.0.0.1", httpx.URL(gateway.url).port or 0)
        begun = await asyncio.to_thread(socket.create_connection, address)
        await until(lambda: bool(gateway.server._handshakes))
        gateway.server.retire()
        emptied = asyncio.create_task(gateway.server.emptied())
        await asyncio.sleep(0)
        assert not emptied.done()
        (await asyncio.to_thread(ask_over, begun, files)).close()
        async with asyncio.timeout(LIMIT_S):
            await emptied


@pytest.mark.slow
@NEEDS_OPENSSL
async def test_a_refused_client_of_https_is_not_waited_for(tmp_path: Path) -> None:
    """Such clients could take all descriptors: each had one for 30 s if it said no goodbye."""
    files = await certified(tmp_path)
    async with running(tmp_path, limits=LimitsConfig(connections=1), **files) as gateway:
        address = ("127.0.0.1", httpx.URL(gateway.url).port or 0)
        context = ssl.create_default_context(cafile=files["ssl_cert_file"])
        _, busy = await asyncio.open_connection(*address, ssl=context)
        busy.write(b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n")
        await until(lambda: bool(gateway.pool.requests.unsettled))
        n_open = n_descriptors()
        refused = await asyncio.to_thread(refused_by, address, context)
        async with asyncio.timeout(LIMIT_S / 3):
            await until(lambda: n_descriptors() == n_open + 1)
        refused.close()
        busy.transport.abort()


def refused_by(address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    """Connect, read the refusal and keep the connection."""
    tls = context.wrap_socket(socket.create_connection(address), server_hostname="127.0.0.1")
    assert tls.recv(4096).startswith(b"HTTP/1.1 503")
    return tls


def n_descriptors() -> int:
    """Count the open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))
