"""The status of a pool as a table, and how a pool is found."""

import errno
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from worker.admin.client import AdminClient, AdminError, NoPoolError, PoolAddress, find_pool
from worker.admin.table import rollout_line, table

WORKER: dict[str, Any] = {
    "name": "h/w-1",
    "host": "h",
    "model": "m",
    "state": "ready",
    "n_slots": 4,
    "n_busy": 3,
    "n_waiting": 1,
    "tokens_per_s": 12.34,
    "n_restarts": 2,
    "is_ejected": False,
    "progress": None,
    "retry_s": None,
    "why": "",
}
ROLLOUT: dict[str, Any] = {
    "state": "none",
    "n_done": 0,
    "n_total": 0,
    "worker": "",
    "step": "",
    "why": "",
    "seconds": 0.0,
}


def test_the_table_tells_workers_queue_and_gateways() -> None:
    away = {**WORKER, "name": "h/w-2", "state": "quarantined", "retry_s": 9.0, "n_slots": 0}
    away["why"] = "exit code 1"
    far = {**WORKER, "name": "g/x", "host": "g", "n_restarts": None, "is_ejected": True}
    status = {
        "status": "ok",
        "workers": [WORKER, {**away, "n_busy": 0, "tokens_per_s": 0.0}, far],
        "queue": {"m": 5, "n": 0},
        "n_quarantined": 2,
        "gateways": [{"name": "gateway", "state": "ready", "n_restarts": 1}],
        "rollout": ROLLOUT,
    }
    assert table(status).splitlines() == [
        "WORKER  HOST  MODEL  STATE                      BUSY  QUEUE  TOKENS/S  RESTARTS",
        "h/w-1   h     m      ready                       3/4      1      12.3         2",
        "h/w-2   h     m      quarantined, again in 9 s   0/0      1       0.0         2",
        "g/x     g     m      ready, ejected              3/4      1      12.3         -",
        "",
        "ok, 6 of 8 slots busy, 24.7 tokens/s, queue: 5 for m",
        "gateways: gateway (ready, 1 restarts)",
        "h/w-2 died: exit code 1",
        "requests refused because workers died with them: 2",
    ]


def test_a_rolling_change_is_one_line() -> None:
    going = {**ROLLOUT, "state": "running", "n_total": 2, "worker": "w", "step": "starting"}
    assert rollout_line(going) == "rolling change running: 0 of 2 workers, w: starting"
    assert rollout_line({**going, "step": ""}).endswith("0 of 2 workers, w")
    failed = {**ROLLOUT, "state": "failed", "n_total": 2, "why": "it died", "seconds": 1.5}
    assert rollout_line(failed) == "rolling change failed: 0 of 2 workers; it died"
    assert rollout_line(ROLLOUT) == ""


def listening(path: Path) -> socket.socket:
    path.parent.mkdir(exist_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def test_the_only_pool_of_this_user_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.admin.client.parents", lambda: [tmp_path])
    monkeypatch.setattr("worker.admin.client.SERVICE_DIR", tmp_path / "no-service")
    with pytest.raises(NoPoolError, match=r"--url and --admin-key, .* --runtime-dir"):
        find_pool("", "", "")
    (tmp_path / "llamapool-dead").mkdir()
    with listening(tmp_path / "llamapool-a" / "admin.sock") as one:
        assert find_pool("", "", "") == PoolAddress(path=one.getsockname())
        with (
            listening(tmp_path / "llamapool-b" / "admin.sock"),
            pytest.raises(NoPoolError, match="2 pools run on this host"),
        ):
            find_pool("", "", "")


@pytest.mark.parametrize("folder", ["", "llamapool-x"])
def test_root_finds_the_pool_of_the_systemd_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """They run as a user of their own: `llamapool status` of root found nothing."""
    monkeypatch.setattr("worker.admin.client.parents", list)
    monkeypatch.setattr("worker.admin.client.SERVICE_DIR", tmp_path)
    with listening(tmp_path / folder / "admin.sock") as service:
        owner = (tmp_path / folder / "admin.sock").stat().st_uid
        for user, finds in ((owner, True), (owner + 1, False), (0, True)):
            monkeypatch.setattr(os, "getuid", lambda user=user: user)
            if finds:
                assert find_pool("", "", "").path == service.getsockname()
            else:
                with pytest.raises(AdminError, match="no running pool"):
                    find_pool("", "", "")


def test_a_pool_that_is_found_in_two_ways_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.admin.client.parents", lambda: [tmp_path])
    monkeypatch.setattr("worker.admin.client.SERVICE_DIR", tmp_path)
    with listening(tmp_path / "llamapool-a" / "admin.sock") as one:
        assert find_pool("", "", "").path == one.getsockname()


def test_what_is_told_is_taken(tmp_path: Path) -> None:
    assert find_pool("http://h:1", "k", "/x") == PoolAddress(url="http://h:1", key="k")
    with pytest.raises(NoPoolError, match="no pool runs in"):
        find_pool("", "", str(tmp_path))


def test_a_directory_of_the_environment_without_a_pool_is_not_the_only_one_that_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images name one, and `serve` in a container has another."""
    monkeypatch.setattr("worker.admin.client.parents", lambda: [tmp_path])
    monkeypatch.setattr("worker.admin.client.SERVICE_DIR", tmp_path / "run")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))
    with listening(tmp_path / "llamapool-a" / "admin.sock") as one:
        assert find_pool("", "", str(tmp_path / "run")).path == one.getsockname()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "no pool answers at http://127.0.0.1:1: Connection refused"),
        ("ftp://h", "must be http://HOST:PORT"),
        ("h:80", "must be http://HOST:PORT"),
        ("http://h:x", "--url"),
        ("http://a..b:1", "--url http://a..b:1: .*: no host has such a name"),
        ("http://[::1", "--url"),
        ("http://a b:1", "must be http://HOST:PORT"),
        ("http://h:1/é", "must be http://HOST:PORT"),
    ],
)
def test_addresses_that_do_not_work_are_named(url: str, message: str) -> None:
    with pytest.raises(NoPoolError, match=message) as caught:
        AdminClient(PoolAddress(url=url)).get("/admin/status")
    assert caught.value.exit_code == 69


def test_a_folder_of_another_user_is_told_as_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "is_socket", refuse)
    with pytest.raises(NoPoolError, match="/run/x is closed to this user"):
        find_pool("", "", "/run/x")


def test_a_name_in_another_encoding_is_refused() -> None:
    with pytest.raises(AdminError, match="is no UTF-8"):
        AdminClient(PoolAddress(url="http://127.0.0.1:1")).post("/x", worker="\udcff")


class Refusing(BaseHTTPRequestHandler):
    """Answers 401 to everything."""

    keys: ClassVar[list[str]] = []
    """What came, as `http.server` reads it."""

    def do_GET(self) -> None:
        self.keys.append(self.headers["Authorization"])
        body = b'{"error": {"message": "Invalid API Key"}}'
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Print nothing."""


def test_a_pool_that_wants_a_key_is_told_with_the_commands_own_option() -> None:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(AdminError, match=r"Invalid API Key: give .* --admin-key or") as caught:
            url = f"http://127.0.0.1:{server.server_port}"
            AdminClient(PoolAddress(url=url, key="é")).get("/x")
        thread.join()
    assert not isinstance(caught.value, NoPoolError)
    assert Refusing.keys[-1].encode("latin-1") == "Bearer é".encode()


def test_a_key_that_no_header_can_carry_is_refused() -> None:
    with pytest.raises(AdminError, match=r"--admin-key .*has characters"):
        AdminClient(PoolAddress(url="http://127.0.0.1:1", key="a\nb")).get("/x")


@pytest.mark.parametrize("n_closed", [1, 2])
def test_a_gateway_that_hands_over_its_socket_is_asked_once_more(
    tmp_path: Path, n_closed: int
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

    def serve() -> None:
        for _ in range(n_closed):
            server.accept()[0].close()
        if n_closed == 1:
            taken, _ = server.accept()
            with taken:
                taken.recv(4096)
                taken.sendall(answer)

    with listening(tmp_path / "admin.sock") as server:
        thread = threading.Thread(target=serve)
        thread.start()
        client = AdminClient(PoolAddress(path=str(tmp_path / "admin.sock")))
        if n_closed == 1:
            assert client.get("/admin/status") == {}
        else:
            with pytest.raises(NoPoolError, match="no pool answers"):
                client.get("/admin/status")
        thread.join()
