"""Grammars of arguments whose parts are tags within tags."""

from collections.abc import Mapping, Sequence
from typing import Any

from worker.grammar import nodes as n
from worker.grammar.json_schema.builder import GrammarBuilder
from worker.grammar.json_schema.literals import until
from worker.grammar.limits import MAX_NODES, SchemaError
from worker.grammar.parameters import TypeReader, parameters, refusing, target, texts
from worker.grammar.rules import literal
from worker.output.formats.tool_format import Nested

_MAX_DEPTH = 8
"""Deeper values are JSON: schemas may refer to themselves."""


def nested_arguments(builder: GrammarBuilder, function: Mapping[str, Any], nested: Nested) -> str:
    """Write all arguments and the tag after them: first what is required, then the rest."""
    document, found = parameters(function)
    with refusing():
        text = _NestedWriter(builder, document, nested).members(
            found, f"tool-{function['name']}-arg", 0
        )
    return f"space {text} space {literal(nested.close)}"


class _NestedWriter:
    """Writes the rules of one tool's arguments."""

    def __init__(self, builder: GrammarBuilder, document: n.Document, nested: Nested) -> None:
        self._builder = builder
        self._document = document
        self._mark = nested.mark
        self._types = TypeReader(document.refs)
        self._n_values = 0

    def members(self, found: Sequence[n.Property], stem: str, depth: int) -> str:
        """Write the members of an object."""
        rules = {
            member.name: self._element(member, f"{stem}-{member.name}", depth) for member in found
        }
        text = " space ".join(rules[member.name] for member in found if member.is_required)
        rest = [rules[member.name] for member in found if not member.is_required]
        if not rest:
            return text or '""'
        return f"{text} (space ({' | '.join(rest)}))*".strip()

    def _element(self, member: n.Property, name: str, depth: int) -> str:
        head = literal(f"{self._mark}<{member.name}>")
        value = self._value(member.schema, name, f"{self._mark}</{member.name}>", depth + 1)
        return self._builder.add_rule(name, f"{head} {value}")

    def _value(self, schema: n.Node, name: str, close: str, depth: int) -> str:
        """Write a value and the tag after it."""
        self._n_values += 1
        if self._n_values > MAX_NODES:
            raise SchemaError(f"more than {MAX_NODES} values after references are followed")
        refs = self._document.refs
        listed = texts(schema, refs)
        if listed and not any(close in text for text in listed):
            return f"({' | '.join(map(literal, listed))}) {literal(close)}"
        if "string" in self._types.of(schema):
            return f"{until(self._builder, close)} {literal(close)}"
        node = target(schema, refs)
        match node:
            case n.AnyOf(children) if depth < _MAX_DEPTH:
                ways = (
                    self._value(child, f"{name}-{i}", close, depth + 1)
                    for i, child in enumerate(children)
                )
                return f"({' | '.join(ways)})"
            case n.Members(properties) if properties and depth < _MAX_DEPTH:
                return f"{self.members(properties, name, depth)} space {literal(close)}"
            case n.Array(items) if depth < _MAX_DEPTH:
                head = literal(f"{self._mark}<item>")
                inner = self._value(items, f"{name}-item", f"{self._mark}</item>", depth + 1)
                rule = self._builder.add_rule(f"{name}-item", f"{head} {inner}")
                return f"(space {rule})* space {literal(close)}"
        value = self._builder.add_node(self._document, schema, f"{name}-value")
        return f"{value} {literal(close)}"
