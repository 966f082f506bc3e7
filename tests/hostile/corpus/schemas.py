"""JSON schemas and patterns whose grammar is much larger than they are."""

from typing import Any

from tests.hostile.case import CaseList, HostileCase, Target


def cases(target: Target) -> list[HostileCase]:
    """Return each schema as `json_schema`, and as `response_format` of a chat."""
    found = CaseList("schemas")
    for label, schema in _schemas().items():
        found.complete(label, json_schema=schema)
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        found.chat(f"{label} in a chat", response_format=form)
    for label, pattern in _PATTERNS.items():
        found.complete(f"pattern {label}", json_schema={"type": "string", "pattern": pattern})
    for label, form in _FORMS.items():
        found.chat(f"response_format {label}", response_format=form)
    return found.cases


def _schemas() -> dict[str, Any]:
    return {
        "doubling references": {
            "$defs": {f"d{i}": {"anyOf": [_ref(i + 1), _ref(i + 1)]} for i in range(40)}
            | {"d40": {"type": "null"}},
            "$ref": "#/$defs/d0",
        },
        "doubling properties": {
            "$defs": {
                f"d{i}": {"properties": {"a": _ref(i + 1), "b": _ref(i + 1)}} for i in range(40)
            }
            | {"d40": {"type": "null"}},
            "$ref": "#/$defs/d0",
        },
        "doubling allOf": {
            "$defs": {f"d{i}": {"allOf": [_ref(i + 1), _ref(i + 1)]} for i in range(40)}
            | {"d40": {"type": "null"}},
            "$ref": "#/$defs/d0",
        },
        "reference to itself": {"$ref": "#"},
        "circle": {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            "$ref": "#/$defs/a",
        },
        "missing reference": {"$ref": "#/$defs/nothing"},
        "foreign reference": {"$ref": "http://127.0.0.1:1/schema.json"},
        "file reference": {"$ref": "file:///etc/passwd"},
        "many optional properties": {
            "type": "object",
            "properties": {f"p{i}": {"type": "integer"} for i in range(3000)},
        },
        "many required properties": {
            "type": "object",
            "properties": {f"p{i}": {"type": "string"} for i in range(3000)},
            "required": [f"p{i}" for i in range(3000)],
        },
        "large enum": {"enum": list(range(20_000))},
        "long const": {"const": "x" * 60_000},
        "huge minItems": {"type": "array", "items": {"type": "null"}, "minItems": 10**9},
        "huge maxLength": {"type": "string", "minLength": 10**6, "maxLength": 10**9},
        "huge integer": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
        "reversed bounds": {"type": "integer", "minimum": 5, "maximum": 1},
        "float bounds": {"type": "integer", "minimum": 0.5, "maximum": 1e30},
        "nested arrays": _nested(60),
        "too deep": _nested(300),
        "nested counts": _counted(12),
        "wide anyOf": {"anyOf": [{"const": i} for i in range(5000)]},
        "mixed allOf": {"allOf": [{"properties": {f"a{i}": True}} for i in range(2000)]},
        "prefixItems": {"type": "array", "prefixItems": [{"type": "null"}] * 5000},
        "all types": {"type": ["string", "null", "object", "array", "number", "boolean"] * 500},
        "wrong types": {"type": {"type": []}, "properties": [1], "required": 5, "enum": {}},
        "format": {"type": "string", "format": "x" * 10_000},
        "false": False,
        "names": {"properties": {'\0\n"\\': {"type": "null"}, "": {"type": "null"}}},
    }


def _ref(i: int) -> dict[str, str]:
    return {"$ref": f"#/$defs/d{i}"}


def _nested(depth: int) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _counted(depth: int) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 10, "maxItems": 20}
    return schema


_PATTERNS = {
    "nested plus": "^(a+)+$",
    "wide": "^" + "(a|b|c)" * 5000 + "$",
    "nested counts": "^((((a{50}){50}){50}){50}){50}$",
    "huge count": "^a{1000000000}$",
    "deep groups": "^" + "(" * 5000 + "a" + ")" * 5000 + "$",
    "open group": "^(((a$",
    "open class": "^[a-$",
    "open count": "^a{1,$",
    "look-ahead": "^(?=a)a(?!b)$",
    "back reference": "^(a)\\1$",
    "no anchors": "a",
    "newlines": '^a\nroot ::= "x"\n$',
    "escapes": "^\\x00\\u0000\\p{L}\\Z$",
    "alternatives": "^" + "|".join(["a"] * 10_000) + "$",
    "dots": "^" + ".*" * 3000 + "$",
}

_FORMS: dict[str, Any] = {
    "unknown": {"type": "yaml"},
    "list": [],
    "no schema": {"type": "json_schema"},
    "schema null": {"type": "json_schema", "json_schema": None},
    "regex": {"type": "regex", "pattern": "(a+)+$"},
    "grammar": {"type": "grammar", "grammar": "root ::= root"},
}
