"""Reads a JSON schema into nodes: llama.cpp's common/json-schema.cpp.

Recursion is bounded by `MAX_DEPTH`, its product by `MAX_NODES`: a list of types copies a schema for
each, and that multiplies with every level.
"""

import math
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from worker.grammar import nodes as n
from worker.grammar.cycles import check_cycles
from worker.grammar.limits import MAX_DEPTH, MAX_NODES, SchemaError

_INT64 = 2**63
_FORMATS = {"date": "date", "time": "time", "date-time": "date-time", "uuid": "uuid"} | {
    f"uuid{version}": "uuid" for version in range(1, 6)
}
_PRIMITIVES = ("number", "boolean", "null")


def read_schema(schema: Any) -> n.Document:
    """Read a decoded schema with all it refers to; raises `SchemaError` with the place."""
    reader = _GrammarReader(schema)
    root = reader.node(schema, "#")
    check_cycles(reader.refs)
    return n.Document(root, reader.refs)


class _GrammarReader:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._depth = 0
        self._n_nodes = 0
        self.refs: dict[str, n.Node] = {}
        self._by_type: Mapping[str, Callable[[Mapping[str, Any], str], n.Node]] = {
            "": self._untyped,
            "object": self._object,
            "string": self._string,
            "array": self.array,
            "integer": _integer,
            **dict.fromkeys(_PRIMITIVES, _primitive),
        }

    def node(self, schema: Any, path: str) -> n.Node:
        """Read one sub-schema."""
        if not isinstance(schema, Mapping):
            raise _fail(path, "schema must be an object")
        self._depth += 1
        self._n_nodes += 1
        if self._depth > MAX_DEPTH:
            raise _fail(path, f"nested deeper than {MAX_DEPTH}")
        if self._n_nodes > MAX_NODES:
            raise _fail(path, f"more than {MAX_NODES} sub-schemas")
        found = self._node(schema, path)
        self._depth -= 1
        return found

    def _node(self, schema: Mapping[str, Any], path: str) -> n.Node:
        if "$ref" in schema:
            return self._ref(schema["$ref"], path)
        for key in ("oneOf", "anyOf"):
            if key in schema:
                return n.AnyOf(self.children(schema[key], f"{path}/{key}"))
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._one_of_types(schema, kind, path)
        if "const" in schema:
            return n.Const(schema["const"])
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list) or not values:
                raise _fail(path, "enum must be a non-empty array")
            return n.Alternatives(tuple(values))
        if kind is not None and not isinstance(kind, str):
            raise _fail(path, "type must be a string or an array of strings")
        read = self._by_type.get(kind or "")
        if read is None:
            raise _fail(path, f"unrecognized type {kind}")
        return read(schema, path)

    def children(self, schemas: Any, path: str) -> tuple[n.Node, ...]:
        """Read a list of sub-schemas that must not be empty."""
        if not isinstance(schemas, list):
            raise _fail(path, "must be an array of schemas")
        if not schemas:
            raise _fail(path, "must not be empty")
        return self._each(schemas, path)

    def _each(self, schemas: list[Any], path: str) -> tuple[n.Node, ...]:
        found = []
        for i, schema in enumerate(schemas):
            found.append(self.node(schema, f"{path}/{i}"))
        return tuple(found)

    def _one_of_types(self, schema: Mapping[str, Any], kinds: list[Any], path: str) -> n.AnyOf:
        if not kinds:
            raise _fail(path, "type must not be empty")
        variants = [{**schema, "type": kind} for kind in kinds]
        return n.AnyOf(self._each(variants, f"{path}/type"))

    # ---- references ---------------------------------------------------------------------------

    def _ref(self, ref: Any, path: str) -> n.Ref:
        if not isinstance(ref, str):
            raise _fail(path, "$ref must be a string")
        if ref != "#" and not ref.startswith("#/"):
            raise _fail(
                path,
                f"unsupported $ref {ref}, only references into the same document are supported",
            )
        if ref not in self.refs:
            self.refs[ref] = n.AnyValue()  # a cycle back to this $ref stops here
            self.refs[ref] = self.node(self._resolve(ref, path), ref)
        return n.Ref(ref)

    def _resolve(self, ref: str, path: str) -> Any:
        target = self._root
        for step in ref.split("/")[1:]:
            plain = urllib.parse.unquote(step).replace("~1", "/").replace("~0", "~")
            key = step if not isinstance(target, Mapping) or step in target else plain
            if isinstance(target, Mapping) and key in target:
                target = target[key]
            elif isinstance(target, list):
                if not re.fullmatch(r"[0-9]{1,9}", step) or int(step) >= len(target):
                    raise _fail(path, f"cannot resolve $ref {ref}, {step} is out of range")
                target = target[int(step)]
            else:
                raise _fail(path, f"cannot resolve $ref {ref}, {step} not found")
        return target

    # ---- by type ------------------------------------------------------------------------------

    def _untyped(self, schema: Mapping[str, Any], path: str) -> n.Node:
        """Without a type the structural keywords decide, in llama.cpp's order."""
        if _has_members(schema):
            return self._members(schema, path)
        if "allOf" in schema:
            return n.AllOf(self.children(schema["allOf"], f"{path}/allOf"))
        if "items" in schema or "prefixItems" in schema:
            return self.array(schema, path)
        if {"pattern", "minLength", "maxLength"} & schema.keys() or _format(schema, path):
            return _text(schema, path)
        return n.AnyValue()

    def _object(self, schema: Mapping[str, Any], path: str) -> n.Node:
        if not _has_members(schema) and "allOf" in schema:
            return n.AllOf(self.children(schema["allOf"], f"{path}/allOf"))
        return self._members(schema, path)

    def _string(self, schema: Mapping[str, Any], path: str) -> n.Node:
        if "allOf" in schema:
            return n.AllOf(self.children(schema["allOf"], f"{path}/allOf"))
        return _text(schema, path)

    def _members(self, schema: Mapping[str, Any], path: str) -> n.Members:
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        needed = {name for name in names if isinstance(name, str)}
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise _fail(path, "properties must be an object")
        found = []
        for name, inner in properties.items():
            node = self.node(inner, f"{path}/properties/{name}")
            found.append(n.Property(name, node, name in needed))
        return n.Members(tuple(found), self._additional(schema, path))

    def _additional(self, schema: Mapping[str, Any], path: str) -> n.Node | None:
        # {"type": "object"} on its own accepts any object; named members close it.
        additional = schema.get("additionalProperties", "properties" not in schema)
        if isinstance(additional, bool):
            return n.AnyValue() if additional else None
        if not isinstance(additional, Mapping):
            raise _fail(path, "additionalProperties must be a boolean or a schema")
        return self.node(additional, f"{path}/additionalProperties")

    def array(self, schema: Mapping[str, Any], path: str) -> n.Node:
        """Read an array; `items` wins over `prefixItems`, a list is a schema for each place."""
        key = "items" if "items" in schema else "prefixItems"
        items = schema.get(key, {})
        if isinstance(items, list):
            return n.NodeSequence(self._each(items, f"{path}/{key}"))
        node = self.node(items, f"{path}/{key}")
        return n.Array(node, *_counts(schema, ("minItems", "maxItems"), path))


def _has_members(schema: Mapping[str, Any]) -> bool:
    return "properties" in schema or schema.get("additionalProperties", True) is not True


def _primitive(schema: Mapping[str, Any], path: str) -> n.Primitive:
    return n.Primitive(schema["type"])


def _text(schema: Mapping[str, Any], path: str) -> n.LiteralText:
    pattern = schema.get("pattern", "")
    if not isinstance(pattern, str):
        raise _fail(path, "pattern must be a string")
    lengths = _counts(schema, ("minLength", "maxLength"), path)
    return n.LiteralText(pattern, _format(schema, path), *lengths)


def _format(schema: Mapping[str, Any], path: str) -> str:
    name = schema.get("format", "")
    if not isinstance(name, str):
        raise _fail(path, "format must be a string")
    return _FORMATS.get(name, "")


def _counts(schema: Mapping[str, Any], keys: tuple[str, str], path: str) -> tuple[int, int | None]:
    for key in keys:
        value = schema.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _fail(path, f"{key} must be a non-negative integer")
    low, high = schema.get(keys[0], 0), schema.get(keys[1])
    if high is not None and low > high:
        raise _fail(path, f"{keys[0]} {low} is larger than {keys[1]} {high}")
    return low, high


def _integer(schema: Mapping[str, Any], path: str) -> n.Integer:
    low = high = None
    if "minimum" in schema:
        low = _bound(schema, "minimum", path, math.ceil)
    elif "exclusiveMinimum" in schema:
        low = _bound(schema, "exclusiveMinimum", path, math.floor) + 1
    if "maximum" in schema:
        high = _bound(schema, "maximum", path, math.floor)
    elif "exclusiveMaximum" in schema:
        high = _bound(schema, "exclusiveMaximum", path, math.ceil) - 1
    if low is not None and high is not None and low > high:
        raise _fail(path, f"no integer is at least {low} and at most {high}")
    # What 64 bits cannot hold bounds nothing, as in llama.cpp: 1e300 would be 300 nested groups.
    return n.Integer(
        None if low is None or not -_INT64 < low < _INT64 else low,
        None if high is None or not -_INT64 <= high < _INT64 - 1 else high,
    )


def _bound(schema: Mapping[str, Any], key: str, path: str, rounded: Callable[[float], int]) -> int:
    value = schema[key]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, float) or not math.isfinite(value):
        raise _fail(path, f"{key} must be a number")
    return rounded(value)


def _fail(path: str, problem: str) -> SchemaError:
    return SchemaError(f"JSON schema error at {path}: {problem}")
