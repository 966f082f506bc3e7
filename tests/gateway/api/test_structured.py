"""json_schema, grammar and response_format: which of them counts, and what excludes what."""

from typing import Any

import pytest

from gateway.api.anthropic import messages
from gateway.api.fields.structured import read_json_schema, read_response_format
from gateway.api.llamacpp import completion
from gateway.api.openai import chat, completions
from gateway.api.openai.responses import plan as responses
from gateway.routes.generate import fields_named
from protocol.errors import InvalidRequest
from tests.gateway.cards import CARD

HI = [{"role": "user", "content": "hi"}]
NULL = {"type": "null"}
GRAMMAR = 'root ::= "a"'


@pytest.mark.parametrize(
    ("body", "schema"),
    [
        ({}, None),
        ({"json_schema": None, "grammar": GRAMMAR}, None),
        ({"json_schema": {}}, "{}"),
        ({"json_schema": NULL, "grammar": ""}, '{"type":"null"}'),
        ({"json_schema": {}, "grammar": ""}, None),
        ({"json_schema": {}, "grammar": None}, None),
        ({"json_schema": {"b": 1, "a": "é"}}, '{"b":1,"a":"é"}'),
    ],
)
def test_a_native_schema_goes_to_the_worker_as_text(body: Any, schema: str | None) -> None:
    assert read_json_schema(body) == schema
    task = completion.plan({"prompt": "x", **body}, CARD).tasks[0]
    assert task.schema == schema
    assert completions.plan({"prompt": "x", **body}, CARD).tasks[0].schema == schema


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (None, None),
        ({}, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, "{}"),
        ({"type": "json_object", "schema": NULL}, '{"type":"null"}'),
        ({"type": "json_schema"}, "{}"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "{}"),
        (
            {"type": "json_schema", "json_schema": {"schema": NULL, "strict": True}},
            '{"type":"null"}',
        ),
    ],
)
def test_a_response_format_is_the_schema_of_the_chat(form: Any, schema: str | None) -> None:
    task = chat.plan({"messages": HI, "response_format": form}, CARD).tasks[0]
    assert task.chat is not None
    assert task.chat.schema == schema


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (None, '{"type":"null"}'),
        ({"type": "text"}, '{"type":"null"}'),
        ({"type": "json_object"}, '{"type":"null"}'),
        ({"type": "json_object", "schema": {"const": 1}}, '{"const":1}'),
        ({"type": "json_schema", "json_schema": {"schema": {"const": 1}}}, '{"const":1}'),
    ],
)
def test_a_schema_in_the_response_format_wins_over_json_schema(form: Any, schema: str) -> None:
    body = {"response_format": form, "json_schema": NULL}
    assert read_response_format(body, body["response_format"] or {}).text == schema


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (
            {"json_schema": NULL, "grammar": GRAMMAR},
            'Either "json_schema" or "grammar" can be specified, but not both',
            "json_schema",
        ),
        (
            {"response_format": {"type": "json_object"}, "grammar": GRAMMAR},
            "Cannot use both response_format and grammar",
            "response_format",
        ),
        (
            {"response_format": {"type": "x"}},
            'response_format type must be one of "text" or "json_object", but got: x',
            "response_format.type",
        ),
        (
            {"response_format": {"type": ["text"]}},
            'response_format type must be one of "text" or "json_object", but got: [\'text\']',
            "response_format.type",
        ),
        (
            {"response_format": "json_object"},
            "Field 'response_format': type must be object, but is string",
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": 5}},
            "Field 'response_format.json_schema': type must be object, but is number",
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_object", "schema": "hiccup"}},
            "Field 'response_format.schema': JSON schema conversion failed:\n"
            "JSON schema error at #: schema must be an object",
            "response_format.schema",
        ),
        (
            {"json_schema": "hiccup"},
            "Field 'json_schema': JSON schema conversion failed:\n"
            "JSON schema error at #: schema must be an object",
            "json_schema",
        ),
    ],
    ids=range(8),
)
def test_what_cannot_be_meant_is_refused(body: Any, message: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat.plan({"messages": HI, **body}, CARD)
    assert (caught.value.message, caught.value.param) == (message, param)


def test_add_generation_prompt_goes_to_the_template() -> None:
    for wish, expected in ((None, True), (True, True), (False, False)):
        body = {"messages": HI, "add_generation_prompt": wish}
        conversation = chat.plan(body, CARD).tasks[0].chat
        assert conversation is not None
        assert conversation.add_generation_prompt is expected


@pytest.mark.parametrize(
    ("plan", "body", "field"),
    [
        (chat.plan, {"response_format": {"type": "json_object"}}, "response_format"),
        (chat.plan, {"json_schema": NULL}, "json_schema"),
        (
            responses.plan,
            {"input": "a", "text": {"format": {"type": "json_schema", "schema": NULL}}},
            "text.format",
        ),
        (
            messages.plan,
            {"output_config": {"format": {"type": "json_schema", "schema": NULL}}},
            "output_config.format",
        ),
    ],
)
def test_a_workers_error_in_a_schema_names_the_field_of_the_client(
    plan: Any, body: dict[str, Any], field: str
) -> None:
    planned = plan({"messages": HI, "max_tokens": 1} | body, CARD)
    with pytest.raises(InvalidRequest) as caught, fields_named(planned):
        raise InvalidRequest("Field 'response_format': too deep", param="response_format")
    assert (caught.value.message, caught.value.param) == (f"Field '{field}': too deep", field)
