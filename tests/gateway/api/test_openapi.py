"""GET /openapi.json: a document that is sound, and that says what the routes and tables say."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gateway
from gateway.api.fields.endpoints import BODIES, ENDPOINTS
from gateway.api.unsupported import REFUSED_ENDPOINTS
from gateway.http.errors import ANSWERS, task_error_body
from gateway.openapi.document import document, field_schema
from protocol.errors import NotStored
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import describe
from tests.gateway.inprocess import running

METHODS = {"get", "post", "put", "delete", "patch"}
TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}


async def fetched(folder: Path) -> dict[str, Any]:
    async with running(folder) as gateway:
        answer = await gateway.client.get("/openapi.json")
        assert answer.status_code == 200
        document: dict[str, Any] = answer.json()
        return document


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Walk over everything that looks like a schema or a reference."""
    if isinstance(value, dict):
        if "type" in value or "$ref" in value:
            yield value
        for item in value.values():
            yield from schemas(item)
    elif isinstance(value, list):
        for item in value:
            yield from schemas(item)


async def test_the_document_is_sound(tmp_path: Path) -> None:
    document = await fetched(tmp_path)
    assert document["openapi"].startswith("3.1.")
    assert set(document["info"]) >= {"title", "version"}
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(names) == len(set(names))
    for path, operations in document["paths"].items():
        assert path.startswith("/")
        assert set(operations) <= METHODS
        for operation in operations.values():
            assert operation["responses"]
            given = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert given == set(re.findall(r"\{(\w+)\}", path))


async def test_the_document_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_written = 0

    def counted(*args: Any) -> Any:
        nonlocal n_written
        n_written += 1
        return document(*args)

    monkeypatch.setattr("gateway.app.document", counted)
    async with running(tmp_path) as gateway:
        first = await gateway.client.get("/openapi.json")
        second = await gateway.client.get("/openapi.json")
    assert first.content == second.content
    assert first.headers["content-type"] == "application/json; charset=utf-8"
    assert n_written == 1


async def test_every_reference_leads_somewhere_and_every_type_is_one(tmp_path: Path) -> None:
    document = await fetched(tmp_path)
    for schema in schemas(document["components"]["schemas"] | document["paths"]):
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/components/schemas/")
            assert name in document["components"]["schemas"]
        kinds = schema.get("type", "string")
        if isinstance(kinds, str | list) and "name" not in schema:
            found = {kinds} if isinstance(kinds, str) else set(kinds)
            assert found <= TYPES | {"http", "apiKey"}, schema


async def test_what_is_served_is_described_and_what_is_refused_says_so(tmp_path: Path) -> None:
    paths = (await fetched(tmp_path))["paths"]
    served = {
        (method.upper(), path)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if any(status.startswith("2") for status in operation["responses"])
    }
    refused = {(method, path) for path, row in REFUSED_ENDPOINTS.items() for method in row[0]}
    every = {(method.upper(), path) for path, found in paths.items() for method in found}
    assert every - served <= refused | {
        (method, path) for path in ("/tools", "/cors-proxy") for method in ("GET", "POST")
    }
    assert served <= set(ENDPOINTS)


async def test_every_status_and_type_of_an_error_is_described(tmp_path: Path) -> None:
    document = await fetched(tmp_path)
    sources = [path.read_text() for path in Path(gateway.__file__).parent.rglob("*.py")]
    refused = {
        number for source in sources for number in re.findall(r"RequestRefused\(\s*(\d{3})", source)
    }
    refused |= {str(answer.status) for answer in ANSWERS.values()}
    assert refused <= set(document["paths"]["/completion"]["post"]["responses"])
    kinds = {kind for source in sources for kind in re.findall(r'"([a-z_]+_error)"', source)}
    inner = document["components"]["schemas"]["Error"]["properties"]["error"]
    assert kinds <= set(inner["properties"]["type"]["enum"])


async def test_what_is_answered_otherwise_than_with_200_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        paths = (await gateway.client.get("/openapi.json")).json()["paths"]
        ended = await gateway.client.delete("/v1/stream", params={"conv_id": "a"})
    assert ended.status_code == 204
    answers = paths["/v1/stream"]["delete"]["responses"]
    assert "content" not in answers["204"] and "200" not in answers
    for path in ("/admin/rollout", "/admin/rollout/abort"):
        assert min(paths[path]["post"]["responses"]) == "202"


async def test_an_error_of_a_message_that_was_not_kept_has_its_details(tmp_path: Path) -> None:
    inner = (await fetched(tmp_path))["components"]["schemas"]["Error"]["properties"]["error"]
    answer = task_error_body(NotStored("gone", param="thread"))["error"]
    assert set(answer) <= set(inner["properties"])


async def test_the_document_needs_a_key_like_every_endpoint(tmp_path: Path) -> None:
    async with running(tmp_path, api_key=("secret",)) as gateway:
        assert (await gateway.client.get("/openapi.json")).status_code == 401


async def test_servers_names_the_prefix(tmp_path: Path) -> None:
    async with running(tmp_path, api_prefix="/llama") as gateway:
        document = (await gateway.client.get("/openapi.json")).json()
        assert document["servers"] == [{"url": "/llama"}]


def test_every_endpoints_body_is_described() -> None:
    assert {row.body for row in ENDPOINTS.values()} - {""} <= set(BODIES)


def test_a_field_says_its_type_limits_and_that_null_is_nothing() -> None:
    by_name = {row.name: row for row in describe(SamplingParams)}
    n_keep, top_k = (field_schema(by_name[name]) for name in ("n_keep", "top_k"))
    assert n_keep["type"] == ["integer", "null"]
    assert (n_keep["minimum"], n_keep["maximum"]) == (-1, 2**31 - 1)
    assert "minimum" not in top_k and "clamped" in top_k["description"]
    assert field_schema(by_name["stop"])["anyOf"][-1] == {"type": "null"}
    assert field_schema(by_name["response_fields"])["items"]["type"] == "string"
    for row in by_name.values():
        schema = field_schema(row)
        assert schema["description"] and ("type" in schema or "anyOf" in schema), row.name


async def test_a_real_error_has_the_described_shape(tmp_path: Path) -> None:
    async with running(tmp_path) as gateway:
        document = (await gateway.client.get("/openapi.json")).json()
        error = document["components"]["schemas"]["Error"]["properties"]["error"]
        for path, body in (("/nothing", {}), ("/completion", {"prompt": 5})):
            answer = (await gateway.client.post(path, json=body)).json()["error"]
            assert set(error["required"]) <= set(answer) <= set(error["properties"])
            assert answer["type"] in error["properties"]["type"]["enum"]
