"""Grammars of arguments in a notation that is almost JSON, as their schemas demand.

Patterns, formats and lengths of strings are not kept. An object whose schema names members has
only these.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from worker.grammar import nodes as n
from worker.grammar.any_order import in_any_order
from worker.grammar.json_schema.builder import GrammarBuilder
from worker.grammar.json_schema.literals import until
from worker.grammar.limits import MAX_NODES, SchemaError
from worker.grammar.parameters import parameters, refusing, target
from worker.grammar.rules import literal, repetition
from worker.output.formats.tool_format import Notation

_ANY = "any-value"
_ESCAPED = r'"\\" (["' + r"'" + r'\\/bfnrt] | "u" [0-9a-fA-F]{4})'
_COLON = '":" space '
_SEPARATOR = ' "," space '


def notated_arguments(
    builder: GrammarBuilder, function: Mapping[str, Any], notation: Notation
) -> str:
    """Write all arguments and what ends them."""
    document, _ = parameters(function)
    writer = _NotatedWriter(builder, document, notation, function["name"])
    with refusing():
        return writer.arguments()


class _NotatedWriter:
    """Writes the rules of one tool's arguments."""

    def __init__(
        self, builder: GrammarBuilder, document: n.Document, notation: Notation, name: str
    ) -> None:
        self._builder = builder
        self._document = document
        self._notation = notation
        self._stem = f"tool-{name}-arg"
        self._target = f"tool-{name}-{zlib.crc32(name.encode()):08x}"
        """Begins the names of rules that refer to themselves, so they must be no other tool's."""
        self._refs: dict[str, str] = {}
        self._n_values = 0

    def arguments(self) -> str:
        """Write all arguments and what ends them."""
        root = target(self._document.root, self._document.refs)
        node = root if isinstance(root, n.Members) else n.Members()
        separator = f"{literal(self._notation.separator)} "
        return self._members(node, self._stem, separator, self._notation.close)

    def _value(self, node: n.Node, name: str) -> str:
        self._n_values += 1
        if self._n_values > MAX_NODES:
            raise SchemaError(f"more than {MAX_NODES} values after references are followed")
        body = ""
        match node:
            case n.Ref(ref):
                body = self._referred(ref)
            case n.AllOf():
                body = self._value(target(node, self._document.refs), name)
            case n.AnyOf(children):
                ways = [self._value(child, f"{name}-{i}") for i, child in enumerate(children)]
                body = f"({' | '.join(ways)})"
            case n.Array():
                body = self._array(node, name)
            case n.NodeSequence(items):
                found = [self._value(item, f"{name}-{i}") for i, item in enumerate(items)]
                body = f'"[" space {_SEPARATOR.join(found)} space "]"'
            case n.Members():
                text = self._members(node, name, _COLON, "}")
                body = self._builder.add_rule(name, f'"{{" {text}')
        return body or self._plain(node, name)

    def _plain(self, node: n.Node, name: str) -> str:
        """Write a value without parts, or any value."""
        body = ""
        match node:
            case n.AnyValue():
                body = self._any()
            case n.Const(value):
                body = self._constant(value)
            case n.Alternatives(values):
                body = f"({' | '.join(map(self._constant, values))})"
            case n.LiteralText():
                body = self._string()
            case n.Primitive("boolean"):
                body = f"({self._word('true')} | {self._word('false')})"
            case n.Primitive("null"):
                body = self._word("null")
        return body or self._builder.add_node(self._document, node, f"{name}-value")

    def _referred(self, ref: str) -> str:
        if ref not in self._refs:
            name = f"{self._target}-ref-{len(self._refs)}"
            self._refs[ref] = name
            self._builder.add_rule(name, self._value(self._document.refs[ref], f"{name}-value"))
        return self._refs[ref]

    # ---- objects and arrays ---------------------------------------------------------------------

    def _members(self, node: n.Members, name: str, separator: str, close: str) -> str:
        """Write the members of an object and what ends them."""
        if node.properties:
            inner = self._named(node.properties, name, separator)
        elif node.additional is None:
            inner = '""'
        else:
            member = f"{self._key(separator)} {self._value(node.additional, f'{name}-any')}"
            inner = f"({member} ({_SEPARATOR}{member})*)?"
        return f"space {inner} space {literal(close)}"

    def _named(self, found: Sequence[n.Property], name: str, separator: str) -> str:
        rules = {
            member.name: self._member(member, f"{name}-{member.name}", separator)
            for member in found
        }
        optional = [rules[member.name] for member in found if not member.is_required]
        required = [member.name for member in found if member.is_required]
        if self._notation.is_sorted:
            required.sort()
        return in_any_order(self._builder, [rules[name] for name in required], optional, _SEPARATOR)

    def _member(self, member: n.Property, name: str, separator: str) -> str:
        is_bare = self._notation.has_bare_keys or separator != _COLON
        key = literal(member.name) if is_bare else self._constant(member.name)
        return self._builder.add_rule(
            f"{name}-kv", f"{key} {separator}{self._value(member.schema, name)}"
        )

    def _array(self, node: n.Array, name: str) -> str:
        def share(body: str) -> str:
            return self._builder.add_rule(f"{name}-part", body)

        item = self._builder.add_rule(f"{name}-item", self._value(node.items, f"{name}-item"))
        some = repetition(item, node.min_items, node.max_items, share, separator='"," space')
        return f'"[" space {some} space "]"'

    # ---- values without parts -------------------------------------------------------------------

    def _any(self) -> str:
        key, string = self._key(_COLON), self._string()
        member = f"{key} {_ANY}"
        words = " | ".join(map(self._word, ("true", "false", "null")))
        number = self._builder.add_node(self._document, n.Primitive("number"), "number")
        return self._builder.add_rule(
            _ANY,
            f'"{{" space ({member} ({_SEPARATOR}{member})*)? space "}}"'
            f' | "[" space ({_ANY} ({_SEPARATOR}{_ANY})*)? space "]"'
            f" | {string} | {number} | {words}",
        )

    def _key(self, separator: str) -> str:
        if self._notation.has_bare_keys or separator != _COLON:
            return f"[A-Za-z0-9_-]+ {separator}".strip()
        return f"{self._string()} {separator}".strip()

    def _string(self) -> str:
        ways = []
        for i, quote in enumerate(self._notation.quotes):
            mark = literal(quote)
            text = until(self._builder, quote)
            if self._notation.has_escapes:
                body = f"([^{quote}\\\\] | {_ESCAPED})*"
                text = self._builder.add_rule(f"string-content-{i}", body)
            ways.append(f"{mark} {text} {mark}")
        return self._builder.add_rule("any-string", " | ".join(ways))

    def _word(self, word: str) -> str:
        ways = [word, *(mine for mine, json_word in self._notation.words if json_word == word)]
        return f"({' | '.join(map(literal, ways))})"

    def _constant(self, value: Any) -> str:
        match value:
            case bool() | None:
                return self._word(json.dumps(value))
            case str():
                return self._text(value)
            case list() | tuple():
                inner = _SEPARATOR.join(map(self._constant, value))
                return f'"[" space {inner} space "]"'
            case Mapping():
                inner = _SEPARATOR.join(
                    f'{self._constant_key(key)} ":" space {self._constant(inner)}'
                    for key, inner in value.items()
                )
                return f'"{{" space {inner} space "}}"'
        return literal(json.dumps(value))

    def _constant_key(self, key: str) -> str:
        return literal(key) if self._notation.has_bare_keys else self._text(key)

    def _text(self, text: str) -> str:
        ways = []
        for quote in self._notation.quotes:
            if self._notation.has_escapes:
                inner = json.dumps(text, ensure_ascii=False)[1:-1]
                inner = inner.replace('\\"', '"').replace(quote, f"\\{quote}")
            elif quote in text:
                return self._string()
            else:
                inner = text
            ways.append(literal(f"{quote}{inner}{quote}"))
        return f"({' | '.join(ways)})"
