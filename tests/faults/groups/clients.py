"""Group D: what clients do."""

import asyncio
import contextlib
import json
import socket
from urllib.parse import urlsplit

from gateway.bench.client.connection import Client
from gateway.soak import faults
from gateway.soak.asking import Ending, ask
from gateway.soak.pool import SoakPool
from gateway.soak.requests import SoakRequest
from gateway.soak.scene import PoolShape, Scene
from tests.faults.case import FaultCase, Inject
from tests.faults.groups.handshakes import raised_limit
from tests.hostile.attack import attack
from tests.hostile.case import Target
from tests.hostile.corpus import GROUPS

_N_IDLE = 2000
_MEANWHILE = 60
"""Answers that others get while some clients are slow."""


async def hang_ups(scene: Scene) -> None:
    for _ in range(3):
        await faults.hang_up(scene, 20)
        await faults.hang_up(scene, 20, reset=True, after=5)
        await faults.hang_up(scene, 20, after=0)


async def hang_ups_of_whole_answers(scene: Scene) -> None:
    client = Client(scene.pool.url)
    body = {"prompt": "Nobody waits", "n_predict": 5000, "ignore_eos": True}

    async def leave(number: int) -> None:
        request = SoakRequest("left", number, "/completion", body)
        await ask(client, request, timeout_s=scene.rng.uniform(0.05, 0.5))

    await asyncio.gather(*(leave(number) for number in range(40)))


async def readers_that_do_not_read(scene: Scene) -> None:
    body = {"prompt": "Nobody reads", "n_predict": 20_000, "ignore_eos": True, "stream": True}
    raw = _request("/completion", json.dumps(body))
    async with Connected(scene, 6) as sockets:
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.get_running_loop().sock_sendall(one, raw)
        await scene.load.answers(_MEANWHILE)


async def slow_senders(scene: Scene) -> None:
    """Send heads and bodies byte by byte, and never to their end."""
    loop = asyncio.get_running_loop()
    head = b"POST /completion HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n"
    async with Connected(scene, 100) as sockets:
        for one in sockets[:50]:
            await loop.sock_sendall(one, head + b"\r\n")
        for _ in range(6):
            for one in sockets:
                with contextlib.suppress(OSError):  # the server may have had enough
                    await loop.sock_sendall(one, b"x")
            await scene.load.answers(_MEANWHILE // 6)


async def idle_connections(scene: Scene) -> None:
    before = scene.pool.resident_mib()
    with raised_limit(2 * _N_IDLE):
        async with Connected(scene, _N_IDLE):
            await scene.load.answers(20)
            name = scene.pool.gateways[0]
            kib = (scene.pool.resident_mib()[name] - before[name]) * 1024 / _N_IDLE
            scene.expect(kib < 40, f"{kib:.0f} KiB for each idle connection")


async def flood(scene: Scene) -> None:
    """Ask for far more than there is room for: refusals must be clean, and say when to return."""
    client = Client(scene.pool.url)
    body = {"prompt": "One of many", "n_predict": 10, "temperature": 0}

    async def one(number: int) -> None:
        outcome = await ask(client, SoakRequest("flood", number, "/completion", body))
        if outcome.ending is Ending.REFUSED:
            scene.expect(outcome.status in (429, 503), f"refused with {outcome.status}")
            scene.expect("retry-after" in outcome.headers, "a refusal without Retry-After")
        else:
            scene.expect(
                outcome.ending is Ending.ANSWERED, f"flood {outcome.ending}: {outcome.why}"
            )

    await asyncio.gather(*(one(number) for number in range(500)))


def hostile(*groups: str, every: int = 1) -> Inject:
    """Requests of the hostile corpus: none may be answered with 500 or hurt anybody."""

    async def inject(scene: Scene) -> None:
        model = (await scene.pool.get("/v1/models"))["data"][0]
        settings = (await scene.pool.get("/props"))["default_generation_settings"]
        target = Target(int(model["meta"]["n_vocab"]), int(settings["n_ctx"]), settings)
        cases = [case for group in groups for case in GROUPS[group](target)][::every]
        outcomes = await asyncio.to_thread(attack, scene.pool.url, cases, at_once=3)
        for one in outcomes:
            scene.expect(one.is_good, str(one))

    return inject


async def two_tenants(scene: Scene) -> None:
    """What one tenant's prompt left in the cache is not found by another's."""
    client = Client(scene.pool.url)
    prompt = "My secret is 4711. " * 30
    found = []
    for salt in ("a", "a", "b"):
        body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "cache_salt": salt}
        outcome = await ask(client, SoakRequest("salted", 0, "/completion", body))
        found.append(int(outcome.headers.get("x-llamapool-cached", "0")))
    scene.expect(found[1] > 100, f"a tenant's own cache gave {found[1]} tokens")
    scene.expect(found[2] < 5, f"another's cache gave {found[2]} tokens")


_KEYS = ("", "Bearer", "Bearer wrong", "Bearer " + "x" * 30_000, "Basic dXNlcjpib3Nz")
_PUBLIC = ("/health", "/v1/health", "/livez", "/readyz")


async def strangers_at_every_route(scene: Scene) -> None:
    """Ask a second pool, which has keys, for each of its routes without its key."""
    folder = scene.pool.folder / "keyed"
    folder.mkdir()
    shape = PoolShape(n_workers=1, gateway={"api_key": ["the-key"]})
    pool = SoakPool(folder, shape.config(folder))
    try:
        await pool.start()
        routes = (await scene.pool.get("/openapi.json"))["paths"]
        for path, methods in routes.items():
            for method in methods:
                for key in _KEYS:
                    await _is_stranger(scene, pool.url, method.upper(), path, key)
        for path in ("//v1/models", "/%76%31/models", "/v1/models/", "/V1/models", "/x/../slots"):
            await _is_stranger(scene, pool.url, "GET", path, "")
    finally:
        await pool.stop()


async def _is_stranger(scene: Scene, url: str, method: str, path: str, key: str) -> None:
    head = f"Authorization: {key}\r\n" if key else ""
    status, _ = await _raw(url, method, path, head)
    refused = {200} if path in _PUBLIC else {400, 401, 404, 431}
    is_page = method == "GET" and path == "/"
    scene.expect(is_page or status in refused, f"{method} {path} {key[:20]!r}: {status}")


async def _raw(url: str, method: str, path: str, more: str = "") -> tuple[int, str]:
    """Send a head as it is; return the status and the head of the answer."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        host = "" if "Host:" in more else "Host: 127.0.0.1\r\n"
        head = f"{method} {path} HTTP/1.1\r\n{host}Content-Length: 0\r\n{more}\r\n"
        writer.write(head.encode())
        told = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode()
        return int(told.split()[1]), told.lower()
    finally:
        writer.close()


async def other_sites(scene: Scene) -> None:
    """Send names of other hosts, and what browsers send for pages of other sites."""
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80"):
        status, _ = await _raw(scene.pool.url, "GET", "/slots", f"Host: {host}\r\n")
        scene.expect(status in (400, 403, 421), f"Host: {host}: {status}")
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        more = f"Origin: {origin}\r\nSec-Fetch-Site: cross-site\r\n"
        status, told = await _raw(scene.pool.url, "POST", "/slots/0?action=erase", more)
        scene.expect(status in (400, 401, 403), f"Origin: {origin}: {status}")
        scene.expect("access-control-allow-origin: *" not in told, f"{origin} may read the answer")


class Connected:
    """Sockets to the pool, closed at the end."""

    def __init__(self, scene: Scene, n: int) -> None:
        self._address = urlsplit(scene.pool.url)
        self._n = n
        self._sockets: list[socket.socket] = []

    async def __aenter__(self) -> list[socket.socket]:
        loop = asyncio.get_running_loop()
        for _ in range(self._n):
            one = socket.socket()
            one.setblocking(False)
            self._sockets.append(one)
            await loop.sock_connect(one, (self._address.hostname, self._address.port))
        return self._sockets

    async def __aexit__(self, *_: object) -> None:
        for one in self._sockets:
            one.close()


def _request(path: str, body: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


_QUICK = PoolShape(worker={"fake_step_ms": 2})
"""An answer without an end fills its context within seconds."""
_ROOMY = PoolShape(gateway={"queue_size": 400})

CASES = [
    FaultCase(
        name="D1",
        what="180 clients hang up while an answer streams, with FIN and RST, and before it begins",
        inject=hang_ups,
        pool=_ROOMY,
        is_shared=True,
    ),
    FaultCase(
        name="D1 whole",
        what="40 clients hang up while they wait for a whole answer",
        inject=hang_ups_of_whole_answers,
        pool=_ROOMY,
    ),
    FaultCase(
        name="D2",
        what="clients that ask for streams and read nothing",
        inject=readers_that_do_not_read,
    ),
    FaultCase(
        name="D3", what="100 clients that send heads and bodies byte by byte", inject=slow_senders
    ),
    FaultCase(name="D4", what="2,000 idle connections", inject=idle_connections),
    FaultCase(
        name="D5",
        what="500 requests at once: the queue is full, and who is refused is told when to return",
        inject=flood,
        may_refuse=True,
        is_shared=True,
    ),
    FaultCase(
        name="D6",
        what="malformed bodies and heads of the hostile corpus",
        inject=hostile("encodings", "headers", "raw_http", every=3),
    ),
    FaultCase(
        name="D7", what="bodies at and beyond their limits", inject=hostile("lengths", every=2)
    ),
    FaultCase(
        name="D8",
        what="every number at its limits and beyond",
        inject=hostile("numbers", every=9),
        pool=_QUICK,
    ),
    FaultCase(
        name="D9",
        what="grammars and schemas that nest, repeat and explode",
        inject=hostile("grammars", "schemas", "nesting", every=3),
    ),
    FaultCase(
        name="D10",
        what="each route without a key, with a wrong, an empty and a huge one: 401",
        inject=strangers_at_every_route,
    ),
    FaultCase(
        name="D11",
        what="names of other hosts, and pages of other sites: refused, and nothing is shared",
        inject=other_sites,
    ),
    FaultCase(name="D14", what="a tenant finds nothing in another's cache", inject=two_tenants),
]
