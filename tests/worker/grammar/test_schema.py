"""JSON schemas to GBNF: llama.cpp's published cases, and where its text would be wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from tests.examples import examples
from worker.grammar.json_schema.builder import GrammarBuilder
from worker.grammar.json_schema.integers import integer_rule
from worker.grammar.json_schema.schema import to_gbnf

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "json_schema_cases.json").read_text()
)
"""llama.cpp's tests/test-json-schema-to-grammar.cpp (MIT); a grammar of null must fail."""

Schema = dict[str, Any]


def rules_of(schema: Schema) -> dict[str, str]:
    """Convert; return the rules by name."""
    lines = to_gbnf(schema).splitlines()
    return {name: body for name, _, body in (line.partition(" ::= ") for line in lines)}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_published_cases_give_the_same_text(case: dict[str, Any]) -> None:
    if case["grammar"] is None:
        with pytest.raises(InvalidRequest, match="JSON schema conversion failed"):
            to_gbnf(case["schema"])
    else:
        assert to_gbnf(case["schema"]).strip() == case["grammar"]


def test_all_published_cases_are_there() -> None:
    assert len(CASES) == 81
    assert sum(case["grammar"] is None for case in CASES) == 3


# ---- where llama.cpp's text would be wrong -------------------------------------------------------


def as_regex(rule: str) -> str:
    """Read an integer rule as a regular expression: it has literals, classes and groups only."""
    parts = re.findall(r'"[^"]*"|\[[^\]]*\](?:\{[0-9,]+\})?|[()|]', rule)
    return "".join(part.strip('"') for part in parts)


BOUND = st.one_of(st.none(), st.integers(-1200, 1200), st.integers(-(10**9), 10**9))


@examples(300)
@given(BOUND, BOUND, st.integers(-3, 3))
def test_an_integer_rule_matches_exactly_what_is_in_bounds(
    low: int | None, high: int | None, offset: int
) -> None:
    if low is None and high is None:
        return
    if low is not None and high is not None and low > high:
        low, high = high, low
    pattern = re.compile(as_regex(integer_rule(low, high)))
    for base in (low, high, 0, 10, -10, 100, -100, 999, 12345):
        if base is None:
            continue
        value = base + offset
        is_inside = (low is None or low <= value) and (high is None or value <= high)
        assert bool(pattern.fullmatch(str(value))) == is_inside, (value, pattern)


def test_a_member_that_two_parts_of_all_of_name_comes_once() -> None:
    parts = [{"properties": {"a": {"type": kind}}} for kind in ("string", "integer")]
    assert rules_of({"allOf": parts})["root"] == '"{" space a-kv space "}"'


def test_all_of_around_one_schema_is_that_schema() -> None:
    wrapped = to_gbnf({"allOf": [{"type": "string", "maxLength": 3}]})
    assert wrapped == to_gbnf({"type": "string", "maxLength": 3})


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "string"}, {"type": "integer"}],
        [{"enum": ["a"]}, {"enum": ["b"]}],
        [{"properties": {"a": {}}}, {"enum": ["b"]}],
    ],
)
def test_parts_of_all_of_that_cannot_hold_together_are_refused(parts: list[Schema]) -> None:
    with pytest.raises(InvalidRequest, match="allOf"):
        to_gbnf({"allOf": parts})


def test_property_names_may_hold_anything() -> None:
    names = ['a"b', "a\\b", "a]b", "a-b", "^", "a\nb", "é", ""]
    found = rules_of({"properties": {name: {} for name in names}, "additionalProperties": True})
    for char in ("[\\\\]", "[\\]]", "[\\-]", "[\\x5E]", "[é]"):
        assert char in found["additional-k"]


def test_lengths_beyond_the_parsers_count_are_written_by_the_thousand() -> None:
    found = rules_of({"type": "string", "minLength": 2500, "maxLength": 10_000})
    assert found["root-part"] == "char{1000}"
    thousands = "root-part{2} char{500} root-part{0,6} char{0,1500}"
    assert found["root"] == f'"\\"" ({thousands}) "\\""'
    items = rules_of({"items": {"type": "null"}, "maxItems": 5000})
    assert items["root-part"] == '"," space null'
    assert items["root-part0"] == "root-part{1000}"


def test_two_documents_keep_their_references_apart() -> None:
    builder = GrammarBuilder(param="tools")
    one, two = (
        builder.add_schema({"$ref": "#/$defs/x", "$defs": {"x": {"const": value}}}, f"t{value}")
        for value in (1, 2)
    )
    text = builder.text()
    assert f"{one} ::= ref-defs-x\n" in text
    assert f"{two} ::= ref-defs-x-0\n" in text
    assert 'ref-defs-x ::= "1"' in text
    assert 'ref-defs-x-0 ::= "2"' in text


def test_references_may_be_recursive_escaped_or_the_root() -> None:
    schema = {"properties": {"next": {"$ref": "#"}, "a": {"$ref": "#/$defs/a~1b%20c"}}}
    found = rules_of({**schema, "$defs": {"a/b c": {"type": "null"}}})
    assert found["next"] == "ref"
    assert found["ref-next-kv"].endswith(" ref-next")
    assert found["a"] == "null"


def test_a_name_with_another_body_gets_a_number() -> None:
    builder = GrammarBuilder()
    assert [builder.add_rule("a b", body) for body in ('"1"', '"2"', '"1"', '"3"')] == [
        *("a-b", "a-b0", "a-b", "a-b1")
    ]
