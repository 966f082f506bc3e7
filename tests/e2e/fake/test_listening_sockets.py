"""The sockets that clients connect to belong to the supervisor, or to systemd: none is refused."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.process import Process, python, wait_for_exit
from tests.e2e.served import Served

pytestmark = pytest.mark.slow

ACTIVATE = textwrap.dedent(
    """
    import os, socket, sys
    sock = socket.create_server(("127.0.0.1", 0))
    print("port", sock.getsockname()[1], flush=True)
    os.dup2(sock.detach(), 3)
    os.set_inheritable(3, True)
    os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "http"}
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    """
)
"""What systemd does for a service with a socket unit."""


def ask(url: str) -> str:
    """Ask on a connection of its own; returns the status, or what went wrong."""
    where = urlsplit(url)
    try:
        with socket.create_connection((where.hostname, where.port), timeout=30) as sock:
            sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return sock.makefile("rb").readline().decode().strip()
    except OSError as error:
        return type(error).__name__


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Unix socket of the pool is."""
    return tmp_path_factory.mktemp("sockets") / "http.sock"


@pytest.fixture(scope="module")
def served(serve_all: Serve, path: Path) -> Iterator[Served]:
    """A pool on an address and on a Unix socket, which goes with it at the end."""
    pool = serve_all({"count": 1}, gateway={"host": f"127.0.0.1,{path}"}).wait_until_ready()
    yield pool
    pool.signal(signal.SIGTERM)
    assert pool.wait() == 0
    assert not path.exists()


def test_a_killed_gateway_refuses_no_connection(served: Served) -> None:
    pid, gone = served.pid_of("gateway"), threading.Event()

    def connect_until_gone(_: int) -> list[str]:
        found = [ask(served.url)]
        while not gone.is_set():
            found.append(ask(served.url))
        return found

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(connect_until_gone, n) for n in range(4)]
        os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid, 40)
        gone.set()
        later = list(threads.map(ask, [served.url] * 50))
    during = [found for one in asked for found in one.result()]
    assert set(later) == {"HTTP/1.1 200"}, "they wait in the backlog for the next gateway"
    # A connection that the dead process had accepted is lost with it; none is refused.
    assert set(during) <= {"HTTP/1.1 200", "ConnectionResetError", ""}
    served.wait_for("process ready child=gateway")


def test_a_unix_socket_outlives_a_gateway(served: Served, path: Path) -> None:
    os.kill(served.pid_of("gateway"), signal.SIGKILL)
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://x", timeout=30) as client:
        assert client.get("/livez").status_code == 200
    served.wait_for("process ready child=gateway")


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_sockets_of_a_socket_unit_are_taken(command: str, tmp_path: Path) -> None:
    config = tmp_path / "activated.toml"
    config.write_text(
        f'runtime_dir = "{tmp_path}/run"\n[gateway]\nport = 1\n[[worker]]\nbackend = "fake"\n'
    )
    (tmp_path / "run").mkdir(mode=0o700)
    module = "worker.cli" if command == "serve" else "gateway"
    words = ["-m", module, *(["serve"] if command == "serve" else []), "--config", str(config)]
    process = Process(python("-c", ACTIVATE, *words))
    try:
        port = process.wait_for(r"^port (\d+)")[1]
        process.wait_for(f"listening url=http://127.0.0.1:{port}")
        assert ask(f"http://127.0.0.1:{port}") == "HTTP/1.1 200"
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.close()


def test_a_descriptor_that_does_not_listen_ends_the_start(tmp_path: Path) -> None:
    text = ACTIVATE.replace('create_server(("127.0.0.1", 0))', "socket(type=socket.SOCK_DGRAM)")
    text = text.replace("sock.getsockname()[1]", "0")
    process = Process(python("-c", text, "-m", "gateway", "--bind", f"ipc://{tmp_path}/w.sock"))
    try:
        assert process.wait() == 78
        assert (
            "socket http of LISTEN_FDS: descriptor 3 is no listening stream socket" in process.text
        )
    finally:
        process.close()


def test_the_supervisor_loads_neither_zeromq_nor_llama_cpp() -> None:
    code = "import sys, worker.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not {"zmq", "llama_cpp", "numpy", "ssl"} & set(loaded.stdout.decode().split())
