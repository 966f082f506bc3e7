"""Grammars of arguments in tags, with each value as its schema demands."""

from collections.abc import Mapping
from typing import Any

from worker.grammar import nodes as n
from worker.grammar.any_order import in_any_order
from worker.grammar.json_schema.builder import GrammarBuilder
from worker.grammar.json_schema.literals import until
from worker.grammar.parameters import TypeReader, parameters, refusing, texts
from worker.grammar.rules import literal
from worker.output.formats.tool_format import Tagged


def tagged_arguments(builder: GrammarBuilder, function: Mapping[str, Any], tagged: Tagged) -> str:
    """Write all arguments and the tag after them."""
    document, found = parameters(function)
    writer = _Writer(builder, document, tagged)
    with refusing():
        rules = {
            member.name: builder.add_rule(f"arg-{member.name}", writer.argument(member))
            for member in found
        }
    required = [rules[member.name] for member in found if member.is_required]
    optional = [rules[member.name] for member in found if not member.is_required]
    text = in_any_order(builder, required, optional)
    return f"{'' if tagged.is_block else 'space '}{text} {literal(tagged.close)}"


class _Writer:
    """Writes the rules of one tool's arguments."""

    def __init__(self, builder: GrammarBuilder, document: n.Document, tagged: Tagged) -> None:
        self._builder = builder
        self._document = document
        self._tagged = tagged
        self._types = TypeReader(document.refs)

    def argument(self, member: n.Property) -> str:
        """Write an argument with its tags."""
        tagged = self._tagged
        head = literal(f"{tagged.key_open}{member.name}{tagged.key_close}")
        if tagged.has_type:
            kinds = sorted(self._types.of(member.schema))
            head += f" ({' | '.join(map(literal, kinds))}) {literal(tagged.value_open)}"
        elif tagged.value_open:
            head += f" space {literal(tagged.value_open)}"
        value = self._marked(member, tagged.kinds) if tagged.kinds else self._value(member)
        if tagged.is_block:
            return f'{head} "\\n" {value}'
        return f"{head} {value} space"

    def _marked(self, member: n.Property, kinds: tuple[str, str]) -> str:
        """Write the text that tells strings from other values, a value, and the tag after it."""
        types = self._types.of(member.schema)
        text = f"{literal(kinds['string' not in types])} {self._value(member)}"
        if not types >= {"string", "null"}:
            return text
        return f'({text} | {literal(kinds[1])} "null" {literal(self._tagged.value_close)})'

    def _value(self, member: n.Property) -> str:
        """Write a value and the tag after it."""
        builder, tagged = self._builder, self._tagged
        close = f"\n{tagged.value_close}\n" if tagged.is_block else tagged.value_close
        listed = texts(member.schema, self._document.refs)
        if listed and not any(tagged.value_close in text for text in listed):
            return f"({' | '.join(map(literal, listed))}) {literal(close)}"
        if "string" not in self._types.of(member.schema):
            value = builder.add_node(self._document, member.schema, f"value-{member.name}")
            return f"{value} {literal(close)}"
        if tagged.quotes:
            begin, end = tagged.quotes
            end += close
            quoted = f"{literal(begin)} {until(builder, end)} {literal(end)}"
            return f"({quoted} | {until(builder, close, begin)} {literal(close)})"
        text = until(builder, close)
        if tagged.is_block:
            # The line break before the value may be that before the tag.
            return f"({text}-01 {literal(close)} | {literal(close[1:])})"
        return f"{text} {literal(close)}"
