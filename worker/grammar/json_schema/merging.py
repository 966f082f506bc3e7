"""Merges the parts of `allOf` to one object, one list of values, or the only part that restricts.

llama.cpp's way for objects: members of all parts are required, those of an `anyOf` among the parts
are not. Where it would drop a part (`allOf` of a string and a pattern), this refuses.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from worker.grammar import nodes as n
from worker.grammar.limits import MAX_NODES, SchemaError
from worker.grammar.rules import constant

Refs = Mapping[str, n.Node]

_NOT_TOGETHER = "allOf: these parts together cannot become a grammar"


@dataclass(slots=True)
class _SchemaParts:
    """What was found so far."""

    properties: dict[str, n.Property] = field(default_factory=dict)
    lists: list[frozenset[str]] = field(default_factory=list)
    others: list[n.Node] = field(default_factory=list)
    is_object: bool = False


def merge(node: n.AllOf, refs: Refs) -> n.Node | tuple[str, ...]:
    """Return an equivalent node, or the constants that remain."""
    parts = _SchemaParts()
    for part in _flat(node, refs):
        if isinstance(part, n.AnyOf):
            _add_any_of(part, refs, parts)
        else:
            _add(part, parts, is_required=True)
        if len(parts.others) > 1:  # at once: each is compared with all parts before it
            raise SchemaError(_NOT_TOGETHER)
    if sum((bool(parts.lists), parts.is_object, bool(parts.others))) > 1:
        raise SchemaError(_NOT_TOGETHER)
    if parts.lists:
        shared = frozenset.intersection(*parts.lists)
        if not shared:
            raise SchemaError("allOf: no value is in all lists")
        return tuple(sorted(shared))
    if parts.is_object:
        return n.Members(tuple(parts.properties.values()))
    return parts.others[0] if parts.others else n.AnyValue()


def _flat(node: n.Node, refs: Refs) -> Iterator[n.Node]:
    """Walk through references and nested `allOf`, each once."""
    waiting, seen = [node], set()
    while waiting:
        member = waiting.pop(0)
        if isinstance(member, n.AllOf):
            waiting[:0] = member.children
        elif isinstance(member, n.Ref):
            if member.ref not in seen:
                seen.add(member.ref)
                waiting.insert(0, refs[member.ref])
        elif not isinstance(member, n.AnyValue):
            yield member
        if len(waiting) > MAX_NODES:
            raise SchemaError("allOf: too many parts")


def _add_any_of(node: n.AnyOf, refs: Refs, parts: _SchemaParts) -> None:
    flat = [part for child in node.children for part in _flat(child, refs)]
    if all(isinstance(part, n.Members) for part in flat):
        for part in flat:
            _add(part, parts, is_required=False)
    else:
        parts.others.append(node)


def _add(part: n.Node, parts: _SchemaParts, *, is_required: bool) -> None:
    match part:
        case n.Members():
            parts.is_object = True
            for member in part.properties:
                needed = is_required or (
                    member.name in parts.properties and parts.properties[member.name].is_required
                )
                parts.properties[member.name] = n.Property(member.name, member.schema, needed)
        case n.Alternatives():
            parts.lists.append(frozenset(map(constant, part.values)))
        case n.Const():
            parts.lists.append(frozenset({constant(part.value)}))
        case _ if part not in parts.others:
            parts.others.append(part)
