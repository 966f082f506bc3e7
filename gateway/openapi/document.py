"""GET /openapi.json: the API as OpenAPI 3.1, made from the routes and the tables of fields.

What an endpoint does comes from `gateway/api/fields/endpoints.py`, a field's type and bounds from
its declaration (`protocol/wire/sampling.py`, `gateway/api/fields/`), an error's shape from the
table of answers.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache

from starlette.routing import Route

from gateway.api.fields.endpoints import BODIES, ENDPOINTS
from gateway.api.fields.tables import PATHS, QUERIES, Body
from gateway.api.unsupported import REFUSED_ENDPOINTS
from gateway.http.errors import ANSWERS
from gateway.http.origin.auth import PUBLIC_PATHS
from gateway.openapi.schemas import Schema, schema_of
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import FieldRow, describe, shape_of
from protocol.wire.shapes import leaves

_JSON, _FORM = "application/json", "multipart/form-data"
_ERRORS: Mapping[int, str] = {
    400: "The request is invalid",
    401: "The key is missing or unknown",
    403: "The key, the site or the client's address has no right to it, or the feature is off",
    404: "No such path, or not with this method",
    408: "The body did not arrive in time",
    413: "The body is larger than allowed",
    414: "The path and the query are too long",
    415: "The body is compressed",
    422: "Workers died under this request before",
    429: "The queue is full, or the request waited in it too long",
    431: "Too many headers, or too large",
    500: "A fault of this server",
    501: "The server was not started with this feature, or does not support it",
    503: "The model is loading, the server is shutting down, or no slot is free",
    504: "The answer did not come within the time that the client gave",
}


def document(routes: Iterable[Route], version: str, prefix: str = "") -> Schema:
    """Return the whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "llamapool",
            "version": version,
            "description": "GGUF models behind llama-server's and OpenAI's API.",
        },
        "servers": [{"url": prefix or "/"}],
        "paths": _paths(routes),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}, {}],
    }


@cache
def _schemas() -> Schema:
    """Return the schemas of all bodies: they are the same in every gateway, and take 15 ms."""
    return {name: _body(body) for name, body in BODIES.items()} | {"Error": _error()}


def field_schema(row: FieldRow) -> Schema:
    """Return the JSON schema of a declared field; null is the same as leaving it out."""
    schema = schema_of(shape_of(row))
    if row.spec.choices:
        schema["enum"] = list(row.spec.choices)
    noted = "; ".join(text for _, text in leaves(shape_of(row)))
    schema["description"] = f"{row.spec.doc} Bound: {noted}." if noted else row.spec.doc
    return _nullable(schema)


def _nullable(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if isinstance(schema.get("type"), str):
        schema = schema | {"type": [schema["type"], "null"]}
    if "enum" in schema:
        schema = schema | {"enum": [*schema["enum"], None]}
    return schema


def _body(body: Body) -> Schema:
    if "" in body.fields:
        return schema_of(body.fields[""]) | {"description": body.doc}
    properties: Schema = {}
    for row in describe(SamplingParams) if body.has_sampling else ():
        properties |= dict.fromkeys((row.name, *row.spec.aliases), field_schema(row))
    properties |= {
        name: schema_of(shape) if name in body.required else _nullable(schema_of(shape))
        for name, shape in body.fields.items()
    }
    schema: Schema = {"type": "object", "description": body.doc, "properties": properties}
    if body.required:
        schema["required"] = list(body.required)
    return schema


def _error() -> Schema:
    kinds = {answer.kind for answer in ANSWERS.values()}
    kinds |= {"authentication_error", "permission_error", "feature_disabled"}
    inner: Schema = {
        "type": "object",
        "required": ["message", "type"],
        "properties": {
            "code": {"type": "integer"},
            "message": {"type": "string"},
            "type": {"type": "string", "enum": sorted(kinds)},
            "param": {"type": "string", "description": "The field that is wrong."},
            "n_prompt_tokens": {"type": "integer"},
            "n_ctx": {"type": "integer"},
            "details": {"type": "object", "description": "What Anthropic's clients act upon."},
        },
    }
    return {"type": "object", "required": ["error"], "properties": {"error": inner}}


def _paths(routes: Iterable[Route]) -> Schema:
    paths: Schema = {}
    for route in routes:
        path = re.sub(r":\w+}", "}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operations = paths.setdefault(path, {})
            operations[method.lower()] = _operation(path, method)
    return paths


def _operation(path: str, method: str) -> Schema:
    endpoint = ENDPOINTS.get((method, path))
    operation: Schema = {
        "operationId": _identifier(method, path),
        "summary": endpoint.summary if endpoint else "Refused: not supported by this server",
        "responses": _responses(path, method),
    }
    if parameters := _parameters(path, method):
        operation["parameters"] = parameters
    if endpoint and endpoint.body:
        reference = {"$ref": f"#/components/schemas/{endpoint.body}"}
        is_form = BODIES[endpoint.body].is_form
        operation["requestBody"] = {
            "required": True,
            "content": {_FORM if is_form else _JSON: {"schema": reference}},
        }
    if path in PUBLIC_PATHS:
        operation["security"] = []
    return operation


def _identifier(method: str, path: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", path)
    return "_".join([method.lower(), *words])


def _parameters(path: str, method: str) -> list[Schema]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": schema_of(PATHS[name])}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    endpoint = ENDPOINTS.get((method, path))
    return named + [
        {"name": name, "in": "query", "schema": schema_of(QUERIES[name])}
        for name in (endpoint.query if endpoint else ())
    ]


def _responses(path: str, method: str) -> Schema:
    reference = {"$ref": "#/components/schemas/Error"}
    errors = {
        str(status): {"description": text, "content": {_JSON: {"schema": reference}}}
        for status, text in _ERRORS.items()
    }
    endpoint = ENDPOINTS.get((method, path))
    if endpoint is None or (path in REFUSED_ENDPOINTS and method in REFUSED_ENDPOINTS[path][0]):
        return errors
    answer: Schema = {"description": "The answer" if endpoint.kinds else "Done"}
    if endpoint.kinds:
        answer["content"] = {kind: {"schema": {}} for kind in endpoint.kinds}
    return {str(endpoint.status): answer} | errors
