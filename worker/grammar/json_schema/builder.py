"""Puts rules and schemas together into one GBNF text."""

from typing import Any

from protocol.errors import InvalidRequest
from worker.grammar.json_schema.converter import Converter
from worker.grammar.json_schema.rulebook import RuleBook
from worker.grammar.limits import SchemaError
from worker.grammar.nodes import Document, Node
from worker.grammar.reader import read_schema

_MAX_SHOWN = 500
"""Characters of what is wrong: it may quote the schema."""


class GrammarBuilder:
    """Collects rules; raises `InvalidRequest` naming `param` for a schema that cannot be one."""

    def __init__(self, *, param: str = "json_schema") -> None:
        self._param = param
        self._rules = RuleBook()

    def add_rule(self, name: str, body: str) -> str:
        """Add a rule and return its name: another one if `name` has another body already."""
        try:
            return self._rules.add(name, body)
        except SchemaError as error:
            raise self._refusal(error) from error

    def add_schema(self, schema: Any, name: str) -> str:
        """Add what a JSON schema (a decoded value) allows; return the name of its rule."""
        try:
            document = read_schema(schema)
            converter = Converter(document, self._rules)
            return converter.visit(document.root, "" if name == "root" else name)
        except (SchemaError, RecursionError, UnicodeError) as error:
            raise self._refusal(error) from error

    def add_node(self, document: Document, node: Node, name: str) -> str:
        """Add what a part of a schema allows; return the name of its rule."""
        try:
            return Converter(document, self._rules).visit(node, name)
        except (SchemaError, RecursionError, UnicodeError) as error:
            raise self._refusal(error) from error

    @property
    def is_half_full(self) -> bool:
        """Whether the rules have half of the size that a grammar may have."""
        return self._rules.is_half_full

    def text(self) -> str:
        """Return all rules, sorted by name; the start is `root`."""
        return self._rules.text()

    def _refusal(self, error: Exception) -> InvalidRequest:
        problem = (
            str(error)[:_MAX_SHOWN] if isinstance(error, SchemaError) else "the schema is too deep"
        )
        message = f"Field '{self._param}': JSON schema conversion failed:\n{problem}"
        return InvalidRequest(message, param=self._param)
