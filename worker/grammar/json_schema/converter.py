"""From the nodes of a schema to rules: llama.cpp's common/json-schema-to-grammar.cpp.

The texts are the same as llama.cpp's, but where that would let wrong JSON through: a member of an
`allOf` twice, a part of an `allOf` dropped, a bound taken too wide, the references of two documents
mixed up.
"""

import logging
from collections.abc import Sequence

from worker.grammar import nodes as n
from worker.grammar import rules
from worker.grammar.json_schema.exclusion import excluding
from worker.grammar.json_schema.integers import integer_rule
from worker.grammar.json_schema.merging import merge
from worker.grammar.json_schema.patterns import UnsupportedPattern, pattern_rule
from worker.grammar.json_schema.rulebook import RuleBook
from worker.grammar.limits import MAX_DEPTH, MAX_RULES, SchemaError

logger = logging.getLogger(__name__)


class Converter:
    """Writes the rules of one document."""

    def __init__(self, document: n.Document, found: RuleBook) -> None:
        self._document = document
        self._rules = found
        self._n_visits = 0
        self._depth = 0
        self._refs: dict[str, str] = {}
        """Reference -> its rule, from the moment when that is started."""
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        """Name of a rule -> the next number for another reference of that name."""
        self._has_warned = False

    def visit(self, node: n.Node, name: str) -> str:
        """Add the rule of a node; the root's name is empty."""
        self._n_visits += 1
        if self._n_visits > MAX_RULES:
            raise SchemaError(f"the schema multiplies out to more than {MAX_RULES} parts")
        self._depth += 1
        if self._depth > 2 * MAX_DEPTH:
            raise SchemaError("allOf and anyOf contain each other without end")
        rule = self._visit(node, name)
        self._depth -= 1
        return rule

    def _visit(self, node: n.Node, name: str) -> str:
        rule = f"{name}-" if name in rules.RESERVED else name or "root"
        match node:
            case n.Primitive():
                return self._builtin(node.name, rule)
            case n.AnyValue():
                return self._rules.add(rule, self._rules.builtin("value"))
            case n.LiteralText():
                return self._text(node, rule)
            case n.Array():
                return self._array(node, name, rule)
            case n.AllOf():
                return self._all_of(node, name, rule)
            case n.Integer() if node == n.Integer():
                return self._builtin("integer", rule)
        return self._rules.add(rule, self._body(node, name))

    def _body(self, node: n.Node, name: str) -> str:
        body = ""
        match node:
            case n.Ref():
                body = self._ref(node.ref)
            case n.AnyOf():
                body = self._union(node.children, name)
            case n.Const():
                body = rules.constant(node.value)
            case n.Alternatives():
                body = f"({' | '.join(map(rules.constant, node.values))})"
            case n.Integer():
                body = f"({integer_rule(node.minimum, node.maximum)})"
            case n.NodeSequence():
                body = self._row(node.items, name)
            case n.Members() if node == n.Members(additional=n.AnyValue()):
                body = self._rules.builtin("object")
            case n.Members():
                body = self._members(node, name)
        assert body, f"no rule for {type(node).__name__}"
        return body

    def _builtin(self, kind: str, rule: str) -> str:
        return self._rules.builtin(kind, "root" if rule == "root" else None)

    def _ref(self, ref: str) -> str:
        if ref not in self._refs:
            name = free = "ref" + rules.rule_name(ref.partition("#")[2])
            number = self._numbers.get(name, 0)
            while free in self._rules or free in self._taken:
                free = f"{name}-{number}"
                number += 1
            self._numbers[name] = number
            self._taken.add(free)
            self._refs[ref] = free
            self._refs[ref] = self.visit(self._document.refs[ref], free)
        return self._refs[ref]

    def _union(self, children: Sequence[n.Node], name: str) -> str:
        stem = f"{name}-" if name else "alternative-"
        found = []
        for i, child in enumerate(children):
            found.append(self.visit(child, f"{stem}{i}"))
        return " | ".join(found)

    def _text(self, node: n.LiteralText, rule: str) -> str:
        if node.pattern:
            return self._pattern(node.pattern, rule)
        if node.format == "uuid":
            return self._builtin("uuid", rule)
        if node.format:
            return self._rules.add(rule, self._rules.builtin(f"{node.format}-string"))
        if node.min_length or node.max_length is not None:
            char = self._rules.builtin("char")
            some = self._repetition(char, node.min_length, node.max_length, rule)
            return self._rules.add(rule, f'"\\"" {some} "\\""')
        return self._builtin("string", rule)

    def _repetition(
        self, item: str, least: int, most: int | None, rule: str, *, separator: str = ""
    ) -> str:
        def share(body: str) -> str:
            return self._rules.add(f"{rule}-part", body)

        return rules.repetition(item, least, most, share, separator=separator)

    def _pattern(self, pattern: str, rule: str) -> str:
        n_rules = len(self._rules)
        try:
            return pattern_rule(pattern, rule, self._rules.add)
        except UnsupportedPattern as error:
            self._rules.forget(n_rules)
            self._warn(pattern, error)
            return self._rules.add(rule, self._rules.builtin("string"))

    def _warn(self, pattern: str, error: UnsupportedPattern) -> None:
        """Log the first pattern of a schema that no grammar can express."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "pattern not supported",
                extra={
                    "pattern": pattern[:200],
                    "cause": error,
                    "action": "the grammar allows any string there; further ones are not logged",
                },
            )

    # ---- arrays and objects -------------------------------------------------------------------

    def _array(self, node: n.Array, name: str, rule: str) -> str:
        if node == n.Array():
            return self._builtin("array", rule)
        item = self.visit(node.items, _sub(name) + "item")
        some = self._repetition(item, node.min_items, node.max_items, rule, separator='"," space')
        return self._rules.add(rule, f'"[" space {some} space "]"')

    def _row(self, items: Sequence[n.Node], name: str) -> str:
        found = []
        for i, item in enumerate(items):
            found.append(self.visit(item, f"{_sub(name)}tuple-{i}"))
        return f'"[" space {_COMMA.join(found)} space "]"'

    def _all_of(self, node: n.AllOf, name: str, rule: str) -> str:
        merged = merge(node, self._document.refs)
        if isinstance(merged, tuple):
            return self._rules.add(rule, f"({' | '.join(merged)})")
        if isinstance(merged, n.Members):
            return self._rules.add(rule, self._members(merged, name))
        return self.visit(merged, name)

    def _members(self, node: n.Members, name: str) -> str:
        pairs: dict[str, str] = {}
        for member in node.properties:
            value = self.visit(member.schema, _sub(name) + member.name)
            key = rules.constant(member.name)
            pairs[member.name] = self._rules.add(
                f"{_sub(name)}{member.name}-kv", f'{key} space ":" space {value}'
            )
        needed = {member.name for member in node.properties if member.is_required}
        required = [pairs[name] for name in pairs if name in needed]
        optional = [(name, pairs[name]) for name in pairs if name not in needed]
        others = None
        if node.additional is not None:
            others = self._others(node.additional, list(pairs), f"{_sub(name)}additional")
        return self._object(required, self._choices(optional, others, name))

    def _others(self, node: n.Node, names: list[str], stem: str) -> str:
        """Add the rule of a member whose name is none of `names`."""
        if node == n.AnyValue():
            value = self._rules.builtin("value")
        else:
            value = self.visit(node, f"{stem}-value")
        if names:
            char = self._rules.builtin("char")
            key = self._rules.add(f"{stem}-k", excluding(names, char))
        else:
            key = self._rules.builtin("string")
        return self._rules.add(f"{stem}-kv", f'{key} ":" space {value}')

    def _choices(self, optional: list[tuple[str, str]], others: str | None, name: str) -> list[str]:
        """Return what an object may go on with: each begins at another optional member."""
        members = [(key, pair, "?") for key, pair in optional]
        if others is not None:
            members.append(("*", others, "*"))
        choices: list[str] = []
        following = ""
        for key, pair, times in reversed(members):
            comma = f'( "," space {pair} )'
            rest = ""
            if following:
                rest = " " + self._rules.add(f"{_sub(name)}{key}-rest", following)
            choices.append(pair + (f" {comma}*" if times == "*" else "") + rest)
            following = comma + times + rest
        return choices[::-1]

    @staticmethod
    def _object(required: list[str], choices: list[str]) -> str:
        if not required and not choices:
            return '"{" space "}"'
        text = '"{" space ' + _COMMA.join(required)
        if choices:
            inner = " | ".join(choices)
            text += f' ( "," space ( {inner} ) )?' if required else f" ({inner} )?"
        return f'{text} space "}}"'


_COMMA = ' "," space '


def _sub(name: str) -> str:
    return f"{name}-" if name else ""
