"""A schema on its way into the grammar of a task, and what llama.cpp makes of such grammars."""

import json
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import InvalidRequest
from protocol.wire.messages import Chat, Generate
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Render
from tests.worker.grammar.test_schema import CASES
from tests.worker.grammar.test_schema_bounds import LARGE
from tests.worker.prompt.read_task import read_task
from tests.worker.served import Served
from worker.engine.fake.backend import FakeBackend
from worker.grammar.json_schema.schema import to_gbnf
from worker.prompt.prompt import PromptReader

HI = ({"role": "user", "content": "hi"},)


def reader(template: str = "") -> PromptReader:
    """A reader over the fake vocabulary: tokens are bytes."""
    config = WorkerConfig(backend="fake", n_ctx=64, chat_template=template)
    return PromptReader(FakeBackend(config), cuts_long=False)


def grammar(**fields: Any) -> str:
    """The grammar of a task, over that of the request."""
    params = SamplingParams(grammar="root ::= [0-9]")
    return read_task(reader("x{{ 1 }}"), Generate(params=params, **fields)).params.grammar


def test_the_schema_of_a_prompt_becomes_its_grammar() -> None:
    assert grammar(prompt="x", schema='{"type":"null"}') == to_gbnf({"type": "null"})
    assert grammar(prompt="x", schema="{}") == to_gbnf({"type": "object"})
    assert grammar(prompt="x") == "root ::= [0-9]"


def test_the_schema_of_a_chat_becomes_its_grammar() -> None:
    text = grammar(chat=Chat(messages=HI, schema='{"enum":["yes","no"]}'))
    assert '("\\"yes\\"" | "\\"no\\"")' in text


@pytest.mark.parametrize("field", ["json_schema", "response_format"])
def test_a_bad_schema_names_the_field_it_came_in(field: str) -> None:
    schema = '{"type":123}'
    fields: dict[str, Any] = {"prompt": "x", "schema": schema}
    if field == "response_format":
        fields = {"chat": Chat(messages=HI, schema=schema)}
    with pytest.raises(InvalidRequest, match="type must be a string or an array") as caught:
        grammar(**fields)
    assert caught.value.param == field


def test_a_conversation_is_rendered_and_counted_beyond_any_context() -> None:
    chat = Chat(messages=({"role": "user", "content": "x" * 200},), add_generation_prompt=False)
    rendered = reader().render(Render(chat=chat))
    assert rendered.prompt == f"<|im_start|>user\n{'x' * 200}<|im_end|>\n"
    assert rendered.n_tokens == 1 + len(rendered.prompt)


# ---- llama.cpp -----------------------------------------------------------------------------------


def opens(served: Served, text: str) -> None:
    """Let llama.cpp parse a grammar."""
    served.backend.open_sampler(SamplingParams(grammar=text), []).close()


@pytest.mark.model
def test_llama_cpp_parses_every_published_grammar(single: Served) -> None:
    for case in CASES:
        if case["grammar"] is not None:
            opens(single, to_gbnf(case["schema"]))


@pytest.mark.model
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 2500, "maxLength": 10_000},
        {"type": "array", "items": {"type": "null"}, "maxItems": 5000},
        {"type": "string", "maxLength": 10**9},
        {"type": "array", "items": {"type": "string", "maxLength": 1500}, "maxItems": 1500},
        {"type": "string", "pattern": "^(a{0,1500}b)?(c{2000}|d{150,}){3}$"},
        {"properties": {'a"]\\^-\n': {}, "é": {}}, "additionalProperties": True},
        *LARGE.values(),
    ],
    ids=range(6 + len(LARGE)),
)
def test_llama_cpp_parses_what_is_ours(single: Served, schema: Any) -> None:
    opens(single, to_gbnf(schema))


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "city": {"enum": ["Paris", "Köln", "São Paulo"]},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
        "boss": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "city", "zip", "boss"],
}


@pytest.mark.model
def test_hot_samples_keep_to_the_schema(served: Served) -> None:
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0.02, "seed": 1, "n_predict": 200}
    for answer in served.ask_all(["A person:", "x", "Ich"], grammar=to_gbnf(PERSON), **hot):
        person = json.loads(answer.text)
        assert list(person)[:4] == ["name", "age", "city", "zip"]
        assert 18 <= person["age"] <= 99
        assert 1 <= len(person["name"]) <= 12
        assert person["city"] in PERSON["properties"]["city"]["enum"]  # type: ignore[index]  # as above
        assert person["zip"].isdigit() and len(person["zip"]) == 5
