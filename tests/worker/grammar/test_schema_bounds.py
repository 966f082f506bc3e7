"""JSON schemas to GBNF: what is too much is refused, and nothing breaks."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from tests.examples import examples
from worker.grammar.json_schema.rulebook import RuleBook
from worker.grammar.json_schema.schema import text_to_gbnf, to_gbnf
from worker.grammar.limits import MAX_GRAMMAR_CHARS
from worker.grammar.nodes import LiteralText

Schema = dict[str, Any]


def nested(depth: int, wrap: str) -> Schema:
    """A schema inside a schema inside a schema."""
    schema: Schema = {"type": "integer"}
    for _ in range(depth):
        schema = {wrap: [schema]} if wrap != "items" else {"type": "array", "items": schema}
    return schema


def doubling(depth: int) -> Schema:
    """A chain of definitions each of which names the next one twice."""
    defs: Schema = {"d0": {"type": "object", "properties": {"z": {"type": "null"}}}}
    for i in range(depth):
        part = {"allOf": [{"$ref": f"#/$defs/d{i}"}]}
        defs[f"d{i + 1}"] = {"type": "object", "properties": {"a": part, "b": part}}
    return {"$ref": f"#/$defs/d{depth}", "$defs": defs}


ENDLESS = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"allOf": [{"anyOf": [{"allOf": [{"$ref": "#/$defs/a"}]}, {"type": "null"}]}]}},
}

HOSTILE: dict[str, Any] = {
    "deep items": nested(5000, "items"),
    "deep anyOf": nested(5000, "anyOf"),
    "deep allOf": nested(5000, "allOf"),
    "many sub-schemas": {"anyOf": [{"type": "null"}] * 20_000},
    "types to the power": {
        "type": ["array"] * 20,
        "items": {"type": ["array"] * 30, "items": {"type": ["array"] * 30}},
    },
    "doubling definitions": doubling(40),
    "endless allOf": ENDLESS,
    "itself": {"$ref": "#"},
    "itself or null": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    "each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}},
    },
    "long pattern": {"type": "string", "pattern": f"^{'a' * 5000}$"},
    "deep pattern": {"type": "string", "pattern": f"^{'(' * 99_000}a{')' * 99_000}$"},
    "open pattern": {"type": "string", "pattern": "^(((a$"},
    "huge repetition": {"type": "string", "pattern": "^a{999999999}$"},
    "long property name": {"properties": {"x" * 5000: {}}, "additionalProperties": True},
    "large enum": {"enum": ["x" * 1000 + str(i) for i in range(2000)]},
    "far reference": {"$ref": "#/$defs/none"},
    "foreign reference": {"$ref": "https://example.org/schema"},
    "index as reference": {"$ref": f"#/a/{'9' * 5000}", "a": []},
    "no integer": {"type": "integer", "minimum": 3, "maximum": 2},
    "no length": {"type": "string", "minLength": 3, "maxLength": 2},
    "huge length": {"type": "string", "minLength": 10**30},
    "negative length": {"type": "string", "minLength": -1},
    "boolean bound": {"type": "integer", "exclusiveMinimum": True},
    "not a schema": {"properties": {"a": 5}},
    "not an object": [],
    "empty anyOf": {"anyOf": []},
    "no type": {"type": []},
    "pattern that is no text": {"pattern": 5},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_beyond_the_bounds_is_a_refusal_that_names_the_field(name: str) -> None:
    with pytest.raises(InvalidRequest, match="JSON schema conversion failed") as caught:
        to_gbnf(HOSTILE[name], param="response_format")
    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 600


LARGE: dict[str, Schema] = {
    "deep items": nested(90, "items"),
    "deep anyOf": nested(90, "anyOf"),
    "many members": {"properties": {f"p{i}": {"type": "integer"} for i in range(3000)}},
    "many values": {"enum": list(range(5000))},
    "wide bounds": {"type": "integer", "minimum": -(10**30), "maximum": 10**30},
    "bounds beyond a float": {"type": "integer", "minimum": -(10**400), "maximum": 10**400},
    "deep pattern": {"type": "string", "pattern": f"^{'(' * 90}a{')' * 90}$"},
    "names alike": {"properties": {f"p {'!' * i}": {} for i in range(300)}},
}


@pytest.mark.parametrize("name", LARGE)
def test_large_schemas_within_the_bounds_are_converted(name: str) -> None:
    assert "root ::= " in to_gbnf(LARGE[name])


def test_references_whose_rules_have_one_name_are_named_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """9,000 of them took ten seconds, in which no other thread of the worker ran for long."""
    asked = list[str]()
    has = RuleBook.__contains__

    def counted(self: RuleBook, name: str) -> bool:
        asked.append(name)
        return has(self, name)

    monkeypatch.setattr(RuleBook, "__contains__", counted)
    names = [chr(0x4E00 + i) for i in range(500)]
    refs = [{"$ref": f"#/$defs/{name}"} for name in names]
    to_gbnf({"$defs": {name: {"type": "null"} for name in names}, "anyOf": refs})
    assert 500 < len(asked) < 2500


def test_a_schema_as_text_is_read_once_and_empty_is_any_object() -> None:
    assert text_to_gbnf("{}") == to_gbnf({"type": "object"})
    text_to_gbnf.cache_clear()
    text_to_gbnf('{"type": "null"}')
    text_to_gbnf('{"type": "null"}')
    assert text_to_gbnf.cache_info().hits == 1


@pytest.mark.parametrize("text", ["{", "x" * 600_000, "[" * 100_000], ids=["cut", "long", "deep"])
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="json_schema"):
        text_to_gbnf(text)


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                (
                    *("type", "properties", "items", "allOf", "anyOf", "enum", "const", "$ref"),
                    *("pattern", "required", "minLength", "maximum", "additionalProperties", "x"),
                )
            ),
            inner | st.sampled_from(["object", "array", "string", "integer", "#", "#/x", "^a+$"]),
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@examples(400)
@given(JSON)
def test_no_value_breaks_the_converter(value: Any) -> None:
    try:
        text = to_gbnf(value)
    except InvalidRequest:
        return
    assert re.search(r"^root ::= ", text, re.M)


def test_parts_that_cannot_go_together_are_refused_at_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """9,000 of them took 5 s: each was compared with all before it."""
    n_compared = 0
    equal = LiteralText.__eq__

    def counted(self: LiteralText, other: object) -> bool:
        nonlocal n_compared
        n_compared += 1
        return equal(self, other)

    monkeypatch.setattr(LiteralText, "__eq__", counted)
    with pytest.raises(InvalidRequest, match="cannot become a grammar"):
        to_gbnf({"allOf": [{"type": "string", "minLength": i} for i in range(100)]})
    assert n_compared < 5


def test_a_name_is_free_again_when_its_rule_is_forgotten() -> None:
    rules = RuleBook()
    names = [rules.add("a", str(i)) for i in range(3)]
    n_rules = len(rules)
    assert [names[-1], rules.add("a", "x"), rules.add("b", "y")] == ["a1", "a2", "b"]
    rules.forget(n_rules)
    assert [rules.add("a", "z"), rules.add("b", "z")] == ["a2", "b"]
    assert rules._next == {"a": 3}


def test_forgotten_rules_take_no_room() -> None:
    rules = RuleBook()
    for _ in range(3):
        rules.add("a", "x" * (MAX_GRAMMAR_CHARS // 2))
        rules.forget(1)
    assert "a" not in rules


def test_one_line_is_logged_for_all_patterns_of_a_schema(caplog: pytest.LogCaptureFixture) -> None:
    """A request could write thousands of warnings."""
    caplog.set_level("WARNING")
    names = {f"a{i}": {"type": "string", "pattern": f"x{i}"} for i in range(9)}
    to_gbnf({"type": "object", "properties": names})
    assert [record.message for record in caplog.records] == ["pattern not supported"]


@pytest.mark.parametrize("bound", [1e300, -1e300, 2**63, -(2**63) - 1])
def test_bounds_beyond_64_bits_are_none(bound: float) -> None:
    for key in ("minimum", "maximum"):
        assert to_gbnf({"type": "integer", key: bound}) == to_gbnf({"type": "integer"})
