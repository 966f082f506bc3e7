"""Which pages may call from a browser: llama-server's four options."""

from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.http.origin.cors import CorsMiddleware, allowed_origin
from protocol.config.config import GatewayConfig
from tests.gateway.inprocess import running

ALLOW = "access-control-allow-origin"


@pytest.mark.parametrize(
    ("origin", "origins", "echoes", "allowed"),
    [
        (b"http://a.b", ("*",), True, b"http://a.b"),
        (b"", ("*",), True, b"*"),
        (b"a\x7fb", ("*",), True, b"*"),
        (b"http://" + b"a" * 9000, ("*",), True, b"*"),
        (b"http://a.b", ("*",), False, b"*"),
        (b"http://localhost:3", ("localhost",), True, b"http://localhost:3"),
        (b"http://127.0.0.1", ("localhost",), True, b"http://127.0.0.1"),
        (b"http://[::1]:3", ("localhost",), True, b"http://[::1]:3"),
        (b"http://localhost.evil.com", ("localhost",), True, b""),
        (b"http://a.b", ("http://a.b", "http://c.d"), True, b"http://a.b"),
        (b"http://c.d", ("http://a.b", "http://c.d"), False, b"http://c.d"),
        (b"http://a.b.evil", ("http://a.b",), True, b""),
        (b"null", ("http://a.b",), True, b""),
        (b"", ("http://a.b",), True, b""),
    ],
)
def test_an_origin_is_allowed_by_the_list(
    origin: bytes, origins: tuple[str, ...], echoes: bool, allowed: bytes
) -> None:
    assert allowed_origin(origin, origins, echoes=echoes) == allowed


async def test_a_preflight_tells_methods_headers_and_credentials(tmp_path: Path) -> None:
    settings = {
        "cors_origins": ("http://a.b",),
        "cors_methods": ("GET", "POST"),
        "cors_headers": ("authorization",),
        "cors_credentials": False,
        "api_key": ("secret",),
    }
    async with running(tmp_path, **settings) as gateway:
        answer = await gateway.client.options("/completion", headers={"Origin": "http://a.b"})
        assert answer.status_code == 200
        assert answer.headers[ALLOW] == "http://a.b"
        assert answer.headers["access-control-allow-credentials"] == "false"
        assert answer.headers["access-control-allow-methods"] == "GET, POST"
        assert answer.headers["access-control-allow-headers"] == "authorization"
        refused = await gateway.client.options("/completion", headers={"Origin": "http://e.vil"})
        assert refused.status_code == 200
        assert ALLOW not in refused.headers


async def test_credentials_are_only_allowed_to_pages_that_are_named(tmp_path: Path) -> None:
    key = "access-control-allow-credentials"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    origin = {"Origin": "http://a.b"}
    async with running(tmp_path / "a", cors_origins=("http://a.b",)) as gateway:
        answer = await gateway.client.get("/livez", headers=origin)
        assert (answer.headers[ALLOW], answer.headers[key]) == ("http://a.b", "true")
        assert ALLOW not in (await gateway.client.get("/livez")).headers
    async with running(tmp_path / "b") as gateway:
        answer = await gateway.client.get("/livez", headers=origin)
        assert answer.headers[ALLOW] == "http://a.b"
        assert key not in answer.headers


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("1.0", b"Access-Control-Allow-Origin"),
        ("1.1", b"Access-Control-Allow-Origin"),
        ("2", b"access-control-allow-origin"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
async def test_names_are_spelled_as_llama_server_does_where_the_protocol_allows_it(
    method: str, version: str, name: bytes
) -> None:
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"origin", b"http://a.b")]
    scope = {"type": "http", "method": method, "http_version": version, "headers": headers}
    await CorsMiddleware(app, GatewayConfig())(scope, receive, send)
    names = [key for key, _ in sent[0]["headers"]]
    assert name in names
    assert version < "2" or names == [key.lower() for key in names]
