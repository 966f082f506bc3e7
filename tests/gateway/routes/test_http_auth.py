"""Keys over real HTTP: denied by default, on every route and method."""

import asyncio
import threading
from pathlib import Path

import pytest

from gateway.api.unsupported import REFUSED_ENDPOINTS
from gateway.http.origin.auth import PUBLIC_PATHS
from gateway.keys.api_key import ApiKey
from gateway.keys.parse import parse_keys
from tests.gateway.inprocess import running

PATHS = sorted(
    {
        "/nope",
        "//v1/models",
        "/health/",
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/completions",
        "/completion",
        "/completions",
        "/tokenize",
        "/detokenize",
        "/v1/models",
        "/models",
        "/props",
        "/slots",
        "/metrics",
        "/v1/audio/transcriptions",
        *(path.replace("{id_slot}", "0") for path in REFUSED_ENDPOINTS),
    }
)


async def test_every_route_but_the_public_ones_needs_a_key(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("secret",)) as gateway:
        await gateway.add_worker()
        for path in PATHS:
            for method in ("GET", "POST", "DELETE", "HEAD", "PUT"):
                response = await gateway.client.request(method, path)
                assert response.status_code == 401, (method, path)
        assert response.headers["x-should-retry"] == "false"
        for path in PUBLIC_PATHS:
            assert (await gateway.client.get(path)).status_code == 200
        assert (await gateway.client.options("/v1/models")).status_code == 200


async def test_public_paths_wait_for_no_key_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_text("k\n")
    may_read, reads = threading.Event(), threading.Event()

    def slow(text: str) -> tuple[ApiKey, ...]:
        reads.set()
        assert may_read.wait(30)
        return parse_keys(text)

    async with running(tmp_path, api_key_file=(str(path),)) as gateway:
        monkeypatch.setattr("gateway.keys.ring.parse_keys", slow)
        monkeypatch.setattr("gateway.keys.ring._READ_LIMIT_S", 60)
        path.write_text("other\n")
        asked = asyncio.ensure_future(gateway.client.get("/v1/models"))
        await asyncio.to_thread(reads.wait, 30)
        assert (await gateway.client.get("/livez")).status_code == 200
        assert not asked.done()
        may_read.set()
        assert (await asked).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "bearer secret"}, 200),
        ({"Authorization": "secret"}, 200),
        ({"X-Api-Key": "secret"}, 200),
        ({"X-Api-Key": "other"}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({"X-Api-Key": ""}, 401),
        ({"X-Api-Key": "# comment"}, 401),
    ],
)
async def test_keys_are_taken_from_either_header(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# comment\n\nother\n")
    async with running(tmp_path, api_key=("secret",), api_key_file=(str(keys),)) as gateway:
        await gateway.add_worker()
        response = await gateway.client.get("/v1/models", headers=headers)
        assert response.status_code == status
        if status == 401:
            assert response.text == (
                '{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}'
            )


async def test_a_changed_key_file_needs_no_restart(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    async with running(tmp_path, api_key_file=(str(keys),)) as gateway:
        await gateway.add_worker()
        old, new = ({"X-Api-Key": key} for key in ("old", "newer"))
        assert (await gateway.client.get("/props", headers=old)).status_code == 200
        keys.write_text("newer\n")
        assert (await gateway.client.get("/props", headers=new)).status_code == 200
        assert (await gateway.client.get("/props", headers=old)).status_code == 401
