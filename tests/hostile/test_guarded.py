"""Keys, usage, traces, feed and admin API of a pool of two fake workers, attacked together."""

import hashlib
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.process import python
from tests.hostile.attack import Outcome, attack
from tests.hostile.case import Target
from tests.hostile.corpus import guarded
from tests.hostile.health import Footprint, harm_in_log, leaks
from tests.hostile.pool import TargetPool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

N_READERS = 64
"""Readers of the feed that a gateway takes."""
_CONFIG = """
runtime_dir = "{folder}/run"

[gateway]
port = 0
metrics = true
otel = true
usage_dir = "{folder}/usage"
api_key_file = ["{folder}/keys.toml"]
trusted_proxies = ["127.0.0.0/8"]

[[worker]]
name = "w"
backend = "fake"
count = 2
n_slots = 4
n_ctx = 4096
"""
_KEY = """
[[key]]
name = "{name}"
sha256 = "{digest}"
scopes = {scopes}
"""


class _Silent(BaseHTTPRequestHandler):
    """A collector of traces that takes a request and never answers."""

    over = threading.Event()

    def do_POST(self) -> None:
        self.over.wait(60)


@pytest.fixture(scope="module")
def collector() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Silent)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    _Silent.over.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory, collector: str) -> Iterator[TargetPool]:
    """What must hold after all attacks is looked at in the end."""
    folder = tmp_path_factory.mktemp("guarded")
    scopes = {guarded.ADMIN: '["infer", "metrics", "admin"]', guarded.USER: '["infer"]'}
    (folder / "keys.toml").write_text(
        "".join(
            _KEY.format(name=key, digest=hashlib.sha256(key.encode()).hexdigest(), scopes=scope)
            for key, scope in scopes.items()
        )
    )
    config = folder / "pool.toml"
    config.write_text(_CONFIG.format(folder=folder))
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    found = TargetPool(python("-m", "worker.cli", "serve", "--config", str(config)), env)
    found.folder = folder
    try:
        found.wait_until_ready()
        headers = {"Authorization": f"Bearer {guarded.ADMIN}"}
        found.client.headers.update(headers)
        assert found.complete("Hi").status_code == 200  # opens log, database and collector
        assert found.client.get("/admin/usage").json()["total"]["requests"] == 1
        before = Footprint.of(found)
        yield found
        assert leaks(found, before) == []
        found.signal(signal.SIGTERM)
        assert found.wait(30) == 0
        assert harm_in_log(found) == []
    finally:
        found.close()


def test_requests_do_no_harm(pool: TargetPool) -> None:
    outcomes = attack(pool.url, guarded.cases(Target(256, 1024, {})), at_once=4)
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    assert [str(outcome) for outcome in bad if not _is_too_late(outcome)] == []
    assert harm_in_log(pool) == []


def _is_too_late(outcome: Outcome) -> bool:
    return outcome.status == 504 and outcome.case.name.startswith("x-request-timeout")


def test_only_admins_get_into_the_admin_api(pool: TargetPool) -> None:
    cases = guarded.cases(Target(256, 1024, {}))
    outcomes = attack(pool.url, [case for case in cases if _is_no_admins(case.name)], at_once=4)
    assert len(outcomes) > 100
    refusals = (400, 401, 403, 404, 413, 414, 431)
    assert [str(outcome) for outcome in outcomes if outcome.status not in refusals] == []


def _is_no_admins(name: str) -> bool:
    return name.startswith("GET /admin") and not name.endswith("'admin'")


def test_the_log_holds_no_line_that_a_client_wrote(pool: TargetPool) -> None:
    assert [line for line in pool.lines if line.lstrip().startswith("ERROR")] == []
    assert [line for line in pool.lines if len(line) > 4000] == []


def test_readers_of_the_feed_who_never_read_hold_nobody_up(pool: TargetPool) -> None:
    address = urlsplit(pool.url)
    head = (
        f"GET /pool/events HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {guarded.ADMIN}\r\n\r\n"
    )
    readers = []
    for _ in range(N_READERS + 20):
        reader = socket.create_connection((address.hostname, address.port), timeout=10)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(head.encode())
        readers.append(reader)
    try:
        refused = [reader for reader in readers if reader.recv(12) == b"HTTP/1.1 429"]
        assert len(refused) == 20
        for _ in range(50):
            assert pool.complete("Hi", n_predict=2).status_code == 200
    finally:
        for reader in readers:
            reader.close()


def test_a_flood_of_questions_leaves_room_for_answers(pool: TargetPool) -> None:
    headers = {"Authorization": f"Bearer {guarded.ADMIN}"}
    over = threading.Event()

    def ask(path: str) -> None:
        with httpx.Client(base_url=pool.url, headers=headers, timeout=30) as client:
            while not over.is_set():
                assert client.get(path).status_code in (200, 404, 429)

    paths = ("/v1/usage", "/admin/usage?by=day", "/admin/requests", "/admin/requests/x", "/metrics")
    threads = [threading.Thread(target=ask, args=(path,), daemon=True) for path in paths * 2]
    for thread in threads:
        thread.start()
    try:
        body = {"prompt": "x " * 300_000, "n_predict": 2}  # large: parsed in a thread
        for _ in range(10):
            assert pool.client.post("/completion", json=body).status_code == 400
            assert pool.complete("Hi", n_predict=2).status_code == 200
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def test_keys_files_that_are_none_change_nothing(pool: TargetPool) -> None:
    path: Path = pool.folder / "keys.toml"
    good = path.read_text()
    try:
        for odd in (
            *("[[key]]", "[[key]]\nname = 1e400", "key = [", "[[key]]\n" * 100_000),
            *('[[key]]\nname = "a"\nkey = "b"\nconcurrent = nan', "x = " + "[" * 9000),
        ):
            new = path.with_name("new")
            new.write_text(odd)
            new.replace(path)
            assert pool.client.get("/v1/models").status_code == 200, odd[:60]
    finally:
        path.write_text(good)
    assert pool.client.get("/v1/models").status_code == 200
