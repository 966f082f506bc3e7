"""What a tool's schema says of its arguments, in linear time whatever refers to what."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from tests.worker.output.test_nested_tools import TEMPLATE as NESTED
from tests.worker.output.test_tagged_tools import TEMPLATES
from tests.worker.prompt.test_conversation import read
from worker.grammar import nodes as n
from worker.grammar.parameters import TypeReader, argument_types, whole_part
from worker.output.chat_parser.tagged import ANY_TYPE

USER = {"role": "user", "content": "hi"}


def doubling(levels: int, last: Mapping[str, Any]) -> dict[str, Any]:
    """Each level refers to the next one twice: every path through it would be 2 ** levels."""
    defs: dict[str, Any] = {
        f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)
    }
    defs[f"a{levels}"] = last
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": defs}


def branching(levels: int, n_members: int) -> dict[str, Any]:
    """Each object has members which are all the next object."""
    defs: dict[str, Any] = {
        f"a{i}": {
            "type": "object",
            "properties": {f"p{j}": {"$ref": f"#/$defs/a{i + 1}"} for j in range(n_members)},
        }
        for i in range(levels)
    }
    defs[f"a{levels}"] = {"type": "integer"}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": defs}


def function(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "f", "parameters": schema}


def test_a_reference_is_followed_once_however_many_lead_to_it() -> None:
    assert argument_types(function(doubling(40, {"type": "integer"}))) == {"x": {"number"}}
    assert whole_part(function(doubling(40, {"type": "null"}))).members["x"].types == {"null"}


def test_members_that_share_their_schema_share_what_is_known_of_it() -> None:
    part = whole_part(function(branching(10, 20))).members["x"]
    assert part.members["p0"] is part.members["p19"]


@pytest.mark.parametrize("schema", [doubling(40, {"type": "integer"}), branching(10, 20)])
@pytest.mark.parametrize("template", [NESTED, TEMPLATES["qwen3-coder"]], ids=["nested", "tagged"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_chat_with_such_a_tool_is_read_or_refused(
    schema: dict[str, Any], template: str, choice: str
) -> None:
    tool = {"type": "function", "function": function(schema)}
    try:
        read(template, USER, tools=(tool,), tool_choice=choice)
    except InvalidRequest as error:
        assert error.param == "tools"


def test_a_tool_whose_parts_contradict_each_other_is_refused() -> None:
    both = {"allOf": [{"type": "string"}, {"type": "integer"}]}
    with pytest.raises(InvalidRequest, match="cannot become a grammar"):
        whole_part(function({"type": "object", "properties": {"x": both}}))


NAMES = ("a", "b", "c")
LEAVES = st.sampled_from(
    [n.AnyValue(), n.Primitive("null"), n.Const(1), n.Alternatives(("x", None))]
)
NODES = st.recursive(
    LEAVES | st.sampled_from(NAMES).map(n.Ref),
    lambda child: st.lists(child, min_size=1, max_size=3).map(lambda c: n.AnyOf(tuple(c))),
    max_leaves=6,
)


def by_every_path(node: n.Node, refs: Mapping[str, n.Node], seen: frozenset[str]) -> set[str]:
    """The definition: what any path leads to."""
    match node:
        case n.Ref(ref):
            return set() if ref in seen else by_every_path(refs[ref], refs, seen | {ref})
        case n.AnyOf(children):
            return set().union(*(by_every_path(child, refs, seen) for child in children))
        case n.AnyValue():
            return set(ANY_TYPE)
    return set(TypeReader({}).of(node))


@given(st.fixed_dictionaries(dict.fromkeys(NAMES, NODES)), NODES)
def test_the_types_are_those_of_all_paths(refs: dict[str, n.Node], node: n.Node) -> None:
    types = TypeReader(refs)
    for one in (node, *refs.values(), node):
        assert types.of(one) == by_every_path(one, refs, frozenset())
