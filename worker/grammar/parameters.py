"""The arguments of a tool one by one, for formats that write each in its own tags."""

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

from protocol.errors import InvalidRequest
from worker.grammar import nodes as n
from worker.grammar.json_schema.merging import merge
from worker.grammar.limits import SchemaError
from worker.grammar.reader import read_schema
from worker.output.chat_parser.nested import ValueTypes
from worker.output.chat_parser.tagged import ANY_TYPE

_MAX_DEPTH = 8


def parameters(function: Mapping[str, Any]) -> tuple[n.Document, tuple[n.Property, ...]]:
    """Read the arguments of a tool; as in llama.cpp, only those that its schema names."""
    with refusing():
        document = read_schema(function.get("parameters") or {"type": "object"})
        root = target(document.root, document.refs)
    return document, root.properties if isinstance(root, n.Members) else ()


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse the tools whose schemas cannot be read inside the block."""
    try:
        yield
    except (SchemaError, RecursionError, UnicodeError) as error:
        text = f"Field 'tools': JSON schema conversion failed:\n{str(error)[:500]}"
        raise InvalidRequest(text, param="tools") from error


def argument_types(function: Mapping[str, Any]) -> dict[str, Set[str]]:
    """Return the JSON types that each argument may have."""
    document, found = parameters(function)
    types = TypeReader(document.refs)
    with refusing():
        return {member.name: types.of(member.schema) for member in found}


def whole_part(function: Mapping[str, Any]) -> ValueTypes:
    """Return the types of a tool's arguments and of their parts, from its schema."""
    document, found = parameters(function)
    parts = _PartReader(document.refs)
    with refusing():
        members = {member.name: parts.of(member.schema, _MAX_DEPTH) for member in found}
    return ValueTypes(frozenset({"object"}), members)


class _PartReader:
    """Reads parts of one document; the target of a reference is read once a level, and shared."""

    def __init__(self, refs: Mapping[str, n.Node]) -> None:
        self._refs = refs
        self._types = TypeReader(refs)
        self._known: dict[tuple[str, int], ValueTypes] = {}

    def of(self, node: n.Node, depth: int) -> ValueTypes:
        """Return the types of a value and of its parts, down to `depth` levels."""
        if not isinstance(node, n.Ref):
            return self._read(node, depth)
        key = (node.ref, depth)
        if key not in self._known:
            self._known[key] = self._read(node, depth)
        return self._known[key]

    def _read(self, node: n.Node, depth: int) -> ValueTypes:
        types = self._types.of(node)
        inside = target(node, self._refs)
        if isinstance(inside, n.Members) and depth:
            members = {
                member.name: self.of(member.schema, depth - 1) for member in inside.properties
            }
            return ValueTypes(types, members)
        if isinstance(inside, n.Array) and depth:
            return ValueTypes(types, item=self.of(inside.items, depth - 1))
        return ValueTypes(types)


def texts(node: n.Node, refs: Mapping[str, n.Node]) -> tuple[str, ...] | None:
    """Return the strings that a schema lists; None: it does not list strings alone."""
    match target(node, refs):
        case n.Const(value=str(value)):
            return (value,)
        case n.Alternatives(values=values) if all(isinstance(value, str) for value in values):
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


class TypeReader:
    """Names the types of JSON that the schemas of one document allow.

    Each reference is followed once, however many lead to it. In a circle of references a first
    set grows until it is stable: types are only added, and there are six.
    """

    def __init__(self, refs: Mapping[str, n.Node]) -> None:
        self._refs = refs
        self._known: dict[str, frozenset[str]] = {}
        """What is certain."""
        self._assumed: dict[str, frozenset[str]] = {}

    def of(self, node: n.Node) -> frozenset[str]:
        """Name the types that a schema allows."""
        self._assumed = {}
        while True:
            before = dict(self._assumed)
            found = self._types(node, set())
            if self._assumed == before:
                self._known |= before
                return found

    def _types(self, node: n.Node, seen: set[str]) -> frozenset[str]:
        match node:
            case n.AnyValue():
                return ANY_TYPE
            case n.Ref(ref):
                return self._referred(ref, seen)
            case n.AnyOf(children):
                return frozenset().union(*(self._types(child, seen) for child in children))
            case n.AllOf(children):
                return ANY_TYPE.intersection(*(self._types(child, seen) for child in children))
        return _own_types(node)

    def _referred(self, ref: str, seen: set[str]) -> frozenset[str]:
        if ref in self._known:
            return self._known[ref]
        if ref not in seen:
            seen.add(ref)
            self._assumed.setdefault(ref, frozenset())
            self._assumed[ref] = self._types(self._refs[ref], seen)
        return self._assumed[ref]


def _own_types(node: n.Node) -> frozenset[str]:
    match node:
        case n.Const(value):
            return frozenset({_type(value)})
        case n.Alternatives(values):
            return frozenset(map(_type, values))
        case n.Primitive(name):
            return frozenset({name})
    return frozenset(name for kind, name in _BY_NODE.items() if isinstance(node, kind))


_BY_NODE: Mapping[type, str] = {
    n.Integer: "number",
    n.LiteralText: "string",
    n.Array: "array",
    n.NodeSequence: "array",
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
