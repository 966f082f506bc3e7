"""vLLM's constraints of an answer: which field of llama-server's each one is."""

from typing import Any

import pytest

from gateway.api.fields.constraints import with_constraint
from gateway.api.openai import chat, completions
from protocol.errors import InvalidRequest
from tests.gateway.cards import CARD

HI = [{"role": "user", "content": "hi"}]
NULL = {"type": "null"}
GRAMMAR = 'root ::= "a"'
YES_NO = 'root ::= "yes" | "no"'


@pytest.mark.parametrize(
    ("fields", "schema", "grammar"),
    [
        ({"structured_outputs": {"json": NULL}}, '{"type":"null"}', ""),
        ({"structured_outputs": {"json": NULL, "regex": None}}, '{"type":"null"}', ""),
        ({"structured_outputs": {"json_object": True}, "grammar": ""}, "{}", ""),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, None, YES_NO),
        ({"structured_outputs": {"grammar": GRAMMAR, "whitespace_pattern": " "}}, None, GRAMMAR),
        ({"structured_outputs": {"json_object": False, "json": None}}, None, ""),
        ({"guided_json": NULL, "guided_decoding_backend": "auto"}, '{"type":"null"}', ""),
        ({"guided_choice": ["yes", "no"], "structured_outputs": {}}, None, YES_NO),
        ({"guided_choice": ['"\\', "\r\n\té"]}, None, 'root ::= "\\"\\\\" | "\\r\\n\\té"'),
        ({"guided_grammar": GRAMMAR, "guided_json": None}, None, GRAMMAR),
        ({"json_schema": NULL, "guided_json": None}, '{"type":"null"}', ""),
    ],
)
def test_a_constraint_of_vllms_is_one_of_llama_servers(
    fields: dict[str, Any], schema: str | None, grammar: str
) -> None:
    task = chat.plan({"messages": HI, **fields}, CARD).tasks[0]
    assert task.chat is not None
    assert (task.chat.schema, task.params.grammar) == (schema, grammar)
    task = completions.plan({"prompt": "a", **fields}, CARD).tasks[0]
    assert (task.schema, task.params.grammar) == (schema, grammar)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"structured_outputs": {"json": NULL, "structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": 3}, "structured_outputs"),
        ({"structured_outputs": {"json": "x"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": NULL, "choice": ["a"]}}, "structured_outputs.json"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice"),
        ({"guided_grammar": 1}, "guided_grammar"),
        ({"guided_grammar": GRAMMAR, "guided_json": NULL}, "guided_json"),
        ({"guided_grammar": GRAMMAR, "grammar": GRAMMAR}, "guided_grammar"),
        ({"guided_json": NULL, "grammar": GRAMMAR}, "json_schema"),
    ],
)
def test_what_cannot_be_kept_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat.plan({"messages": HI, **fields}, CARD)
    assert caught.value.param == param


def test_a_body_without_one_stays_as_it_is() -> None:
    body = {"prompt": "a", "guided_json": None}
    assert with_constraint(body) is body
