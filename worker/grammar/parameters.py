"""The arguments of a tool one by one, for formats that write each in its own tags."""

from collections.abc import Mapping, Set
from typing import Any

from protocol.errors import InvalidRequest
from worker.grammar import nodes as n
from worker.grammar.limits import SchemaError
from worker.grammar.merging import merge
from worker.grammar.reader import read_schema
from worker.output.chat.nested import Part

_MAX_DEPTH = 8
ANY_TYPE = frozenset({"string", "number", "boolean", "null", "array", "object"})


def parameters(function: Mapping[str, Any]) -> tuple[n.Document, tuple[n.Property, ...]]:
    """Read what a tool takes; as in llama.cpp, only what its schema names."""
    try:
        document = read_schema(function.get("parameters") or {"type": "object"})
        root = target(document.root, document.refs)
    except (SchemaError, RecursionError, UnicodeError) as error:
        text = f"Field 'tools': JSON schema conversion failed:\n{str(error)[:500]}"
        raise InvalidRequest(text, param="tools") from error
    return document, root.properties if isinstance(root, n.Members) else ()


def argument_types(function: Mapping[str, Any]) -> dict[str, Set[str]]:
    """Tell which types of JSON each argument may have."""
    document, found = parameters(function)
    return {one.name: value_types(one.schema, document.refs) for one in found}


def whole_part(function: Mapping[str, Any]) -> Part:
    """Tell what a tool's schema says of its arguments, and of what is in them."""
    document, found = parameters(function)
    members = {one.name: _part(one.schema, document.refs, _MAX_DEPTH) for one in found}
    return Part(frozenset({"object"}), members)


def _part(node: n.Node, refs: Mapping[str, n.Node], depth: int) -> Part:
    types = value_types(node, refs)
    inside = target(node, refs)
    if isinstance(inside, n.Members) and depth:
        members = {one.name: _part(one.schema, refs, depth - 1) for one in inside.properties}
        return Part(types, members)
    if isinstance(inside, n.Array) and depth:
        return Part(types, item=_part(inside.items, refs, depth - 1))
    return Part(types)


def value_types(node: n.Node, refs: Mapping[str, n.Node]) -> frozenset[str]:
    """Name the types of JSON that a schema allows."""
    return _types(node, refs, frozenset())


def texts(node: n.Node, refs: Mapping[str, n.Node]) -> tuple[str, ...] | None:
    """Return the strings that a schema lists; None: it does not list strings alone."""
    match target(node, refs):
        case n.Const(value=str(value)):
            return (value,)
        case n.Choice(values=values) if all(isinstance(value, str) for value in values):
            return values
    return None


def target(node: n.Node, refs: Mapping[str, n.Node]) -> n.Node:
    """Follow references, and merge what must hold at once."""
    seen = set[str]()
    while isinstance(node, n.Ref) and node.ref not in seen:
        seen.add(node.ref)
        node = refs[node.ref]
    if isinstance(node, n.AllOf):
        merged = merge(node, refs)
        return n.AnyValue() if isinstance(merged, tuple) else merged
    return node


def _types(node: n.Node, refs: Mapping[str, n.Node], seen: frozenset[str]) -> frozenset[str]:
    found = frozenset[str]()
    match node:
        case n.AnyValue():
            found = ANY_TYPE
        case n.Ref(ref) if ref not in seen:
            found = _types(refs[ref], refs, seen | {ref})
        case n.AnyOf(children):
            found = frozenset().union(*(_types(child, refs, seen) for child in children))
        case n.AllOf(children):
            found = ANY_TYPE.intersection(*(_types(child, refs, seen) for child in children))
        case n.Const(value):
            found = frozenset({_type(value)})
        case n.Choice(values):
            found = frozenset(map(_type, values))
        case n.Primitive(name):
            found = frozenset({name})
        case _:
            found = frozenset(name for kind, name in _BY_NODE.items() if isinstance(node, kind))
    return found


_BY_NODE: Mapping[type, str] = {
    n.Integer: "number",
    n.Text: "string",
    n.Array: "array",
    n.Row: "array",
    n.Members: "object",
}


def _type(value: Any) -> str:
    kinds: tuple[tuple[Any, str], ...] = (
        (str, "string"),
        (bool, "boolean"),
        ((int, float), "number"),
        (list, "array"),
        (Mapping, "object"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")
