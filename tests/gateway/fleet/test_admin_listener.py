"""The socket of the admin API among several gateways."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway.fleet import admin_listener
from gateway.fleet.admin_listener import AdminListener
from protocol.config.config import GatewayConfig


@asynccontextmanager
async def listening(path: Path, name: str) -> AsyncIterator[AdminListener]:
    async def answer(_: Request) -> PlainTextResponse:
        return PlainTextResponse(name)

    app = Starlette(routes=[Route("/", answer)])
    listener = AdminListener(app, GatewayConfig(admin_socket=str(path)))
    await listener.start()
    yield listener
    await listener.close()


async def answers(path: Path) -> str:
    """Return who answers at the socket; empty if nobody does."""
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        try:
            return (await client.get("/")).text
        except httpx.TransportError:
            return ""


def die(path: Path) -> None:
    """Leave the path as a killed gateway does, whose socket nobody listens on."""
    dead = path.with_name("dead")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(dead))
    dead.rename(path)


async def test_the_newest_gateway_answers_and_another_one_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_listener, "_CHECK_S", 0.01)
    path = tmp_path / "admin.sock"
    async with listening(path, "old"):
        async with listening(path, "new"):
            for _ in range(20):
                assert await answers(path) == "new"
        while await answers(path) != "old":
            pass
    assert not path.exists()


async def test_a_gateway_takes_the_socket_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_listener, "_CHECK_S", 0.01)
    path = tmp_path / "admin.sock"
    async with listening(path, "survivor"):
        for _ in range(3):
            die(path)
            while await answers(path) != "survivor":
                pass
