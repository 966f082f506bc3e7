"""Which web pages may do what on a server that only this host reaches and no key protects."""

from pathlib import Path

import pytest

from gateway.http.origin.sites import LOCAL_NAMES, allowed_names, host_name, is_foreign_page
from protocol.config.config import GatewayConfig
from tests.gateway.inprocess import running

EVIL = {"Origin": "http://evil.example"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8080", "localhost"),
        ("localhost.", "localhost"),
        ("[::1]:80", "::1"),
        ("evil.example", "evil.example"),
        ("localhost@evil.example", ""),
        ("localhost/evil", ""),
        ("a:b", ""),
        ("", ""),
        ("[::1", ""),
    ],
)
def test_a_host_header_names_a_host(text: str, name: str) -> None:
    assert host_name(text) == name


def test_names_are_checked_where_only_this_host_gets_in_without_a_key() -> None:
    assert allowed_names(GatewayConfig(), is_open=True) == LOCAL_NAMES
    assert allowed_names(GatewayConfig(), is_open=False) is None
    assert allowed_names(GatewayConfig(host="0.0.0.0"), is_open=True) is None
    assert allowed_names(GatewayConfig(allowed_hosts=("*",)), is_open=True) is None
    named = GatewayConfig(host="0.0.0.0", allowed_hosts=("Pool.example",))
    assert "pool.example" in (allowed_names(named, is_open=False) or ())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("192.168.1.5", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("a@localhost", 403),
    ],
)
async def test_a_name_that_was_pointed_here_is_refused(
    tmp_path: Path, host: str, status: int
) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker()
        for path in ("/v1/models", "/health", "/"):
            answer = await gateway.client.get(path, headers={"Host": host})
            assert answer.status_code == status, path
        if status == 403:
            answer = await gateway.post("/v1/models", {}, headers={"Host": host} | EVIL)
            assert answer.json()["error"]["type"] == "permission_error"
            assert "--allowed-hosts" in answer.json()["error"]["message"]
            assert "access-control-allow-origin" not in answer.headers


async def test_a_name_can_be_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, allowed_hosts=("pool.example",)) as gateway:
        for host, status in (("pool.example:80", 200), ("other.example", 403)):
            answer = await gateway.client.get("/livez", headers={"Host": host})
            assert answer.status_code == status


@pytest.mark.parametrize(
    ("headers", "is_foreign"),
    [
        ({}, False),
        ({"Host": "localhost:8080"}, False),
        ({"Host": "localhost:8080", "Origin": "http://localhost:8080"}, False),
        ({"Host": "127.0.0.1:8080", "Origin": "http://localhost:3000"}, False),
        ({"Host": "pool.example", "Origin": "https://pool.example"}, False),
        ({"Host": "pool.example", "Origin": "https://page.example"}, False),
        ({"Host": "localhost:8080", "Origin": "http://evil.example"}, True),
        ({"Host": "localhost:8080", "Origin": "http://localhost.evil.example"}, True),
        ({"Host": "localhost:8080", "Origin": "null"}, True),
        ({"Host": "localhost:8080", "Origin": "http://[::1"}, True),
        ({"Host": "localhost:8080", "Sec-Fetch-Site": "cross-site"}, True),
        ({"Host": "localhost:8080", "Sec-Fetch-Site": "same-origin"}, False),
        ({"Host": "localhost:8080", "Sec-Fetch-Site": "none"}, False),
    ],
)
def test_pages_of_other_sites_are_told_apart(headers: dict[str, str], is_foreign: bool) -> None:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    assert is_foreign_page(raw, ("*", "https://page.example")) == is_foreign


CHANGES = [
    ("POST", "/lora-adapters", []),
    ("POST", "/props", {}),
    ("POST", "/models/load", {"model": "x"}),
    ("POST", "/models/unload", {"model": "x"}),
    ("DELETE", "/models?model=x", None),
    ("POST", "/slots/0?action=erase", {}),
    ("POST", "/completion", {"prompt": "x", "system_prompt": {"prompt": "Obey."}}),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_foreign_page_may_ask_but_not_change_the_server(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    async with running(tmp_path, props=True) as gateway:
        await gateway.add_worker()
        refused = await gateway.client.request(method, path, json=body, headers=EVIL)
        assert refused.status_code == 403
        assert refused.json()["error"]["type"] == "permission_error"
        own = await gateway.client.request(method, path, json=body)
        assert own.status_code != 403
        asked = await gateway.post("/completion", {"prompt": "a b"}, headers=EVIL)
        assert asked.status_code == 200  # as llama-server answers any page


async def test_an_origin_that_is_named_may_change_the_server(tmp_path: Path) -> None:
    async with running(tmp_path, props=True, cors_origins=("http://evil.example",)) as gateway:
        await gateway.add_worker()
        assert (await gateway.post("/props", {}, headers=EVIL)).status_code == 200


async def test_a_foreign_page_sees_no_more_of_slots_than_that_they_work(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        await gateway.add_worker()
        rows = (await gateway.client.get("/slots", headers=EVIL)).json()
        assert {tuple(sorted(row)) for row in rows} == {
            ("id", "is_processing", "n_ctx", "speculative", "state")
        }
