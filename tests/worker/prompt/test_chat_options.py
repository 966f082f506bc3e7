"""What options make of chats: without Jinja, unparsed, with and without reasoning."""

import json
from typing import Any

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Chat
from tests.worker.chat_templates import HERMES, THINKER
from tests.worker.prompt.test_templates import CONVERSATIONS, llama_cpp_says
from worker.grammar.limits import MAX_SCHEMA_CHARS
from worker.output.chat_parser.parser import ChatParser
from worker.prompt.chat.built_in import BuiltInReader
from worker.prompt.chat.conversation import ConversationReader
from worker.prompt.templates.detect import built_in, detected
from worker.prompt.templates.table import BUILT_IN

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def card(template: str, **fields: Any) -> ModelCard:
    return ModelCard(
        name="m", path="m", n_slots=1, n_ctx=9, n_ctx_total=9, chat_template=template, **fields
    )


# ---- without Jinja -----------------------------------------------------------------------------

SOURCES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}",
    "phi4": "<|im_start|> <|im_sep|>",
    "smolvlm": "<|im_start|> <end_of_utterance>",
    "mistral-v1": "{{ ' [INST] ' + system_message }}",
    "mistral-v3": "[INST][AVAILABLE_TOOLS]",
    "mistral-v3-tekken": '"[INST]" [AVAILABLE_TOOLS]',
    "mistral-v7": "[INST][SYSTEM_PROMPT]",
    "llama2": "[INST]",
    "llama2-sys": "[INST] <<SYS>>",
    "llama2-sys-bos": "{{ bos_token + '[INST] <<SYS>>' }}",
    "llama2-sys-strip": "[INST] {{ content.strip() }}",
    "phi3": "<|assistant|> <|end|>",
    "chatglm4": "[gMASK]<sop>",
    "exaone-moe": "<|assistant|><|user|><|tool_declare|>",
    "falcon3": "<|assistant|><|user|></s>",
    "glmedge": "<|assistant|><|user|>",
    "zephyr": "<|user|><|endoftext|>",
    "monarch": "{{ bos_token + message['role'] }}",
    "gemma": "<start_of_turn>",
    "orion": "{{ '\\n\\nAssistant: ' + eos_token }}",
    "openchat": "GPT4 Correct ",
    "vicuna": "USER: ASSISTANT: ",
    "vicuna-orca": "SYSTEM: USER: ASSISTANT: ",
    "deepseek": "### Instruction: <|EOT|>",
    "command-r": "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
    "llama3": "<|start_header_id|><|end_header_id|>",
    "chatglm3": "[gMASK]sop",
    "deepseek2": "{{ 'Assistant: ' + message['content'] + eos_token }}",
    "exaone3": "[|system|][|assistant|][|endofturn|]",
    "exaone4": "[|system|][|assistant|][|endofturn|][|tool|]",
    "granite": "<|start_of_role|>",
    "granite-4.0": "<|start_of_role|><tools>g4_default_system_message",
    "granite-4.1": "<|start_of_role|><tool_call>",
    "megrez": "<|role_start|>",
    "bailing": "<role>ASSISTANT</role>'HUMAN'",
    "bailing-think": '<role>ASSISTANT</role>"HUMAN"<think>',
    "bailing2": "<role>ASSISTANT</role><role>HUMAN</role><|role_end|>",
    "llama4": "<|header_start|><|header_end|>",
    "dots1": "<|endofuserprompt|>",
    "hunyuan-moe": "<|extra_0|><|extra_4|>",
    "gpt-oss": "<|start|><|channel|>",
    "kimi-k2": "<|im_assistant|>assistant<|im_middle|>",
    "seed_oss": "<seed:bos>",
    "grok-2": "{{ 'Assistant: '  + message['content'] + '<|separator|>' }}",
    "solar-open": "<|begin|><|end|><|content|>",
}


@pytest.mark.parametrize(("name", "source"), SOURCES.items(), ids=SOURCES)
def test_a_template_is_known_by_its_marks(name: str, source: str) -> None:
    assert detected(source) == name


def test_a_name_is_known_as_itself_and_other_texts_are_not_known() -> None:
    assert all(detected(name) == name for name in BUILT_IN)
    assert built_in("{{ messages }}") == ""


@pytest.mark.model
@pytest.mark.parametrize(("name", "source"), SOURCES.items(), ids=SOURCES)
def test_the_built_in_form_is_what_llama_cpp_writes_for_the_same_text(
    name: str, source: str
) -> None:
    reader = BuiltInReader(card(source, jinja=False))
    for turns in CONVERSATIONS:
        messages = tuple({"role": role, "content": content} for role, content in turns)
        for adds in (True, False):
            text = reader.read(Chat(messages=messages, add_generation_prompt=adds)).text
            assert text == llama_cpp_says(source, turns, add_answer=adds), turns


def test_without_jinja_a_partial_answer_is_a_message_like_any_other() -> None:
    messages = (USER, {"role": "assistant", "content": None})
    chat = Chat(messages=messages, add_generation_prompt=False, continue_final_message=True)
    prompt = BuiltInReader(card("chatml", jinja=False)).read(chat)
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
    assert prompt.expected is None and not prompt.reasoning_marks


def test_without_jinja_a_schema_is_still_a_grammar() -> None:
    reader = BuiltInReader(card("", jinja=False))
    assert "root ::= " in reader.read(Chat(messages=(USER,), schema="{}")).grammar
    assert reader.read(Chat(messages=(USER,))).grammar == ""


@pytest.mark.parametrize("reader", [BuiltInReader, ConversationReader])
def test_a_schema_that_is_too_long_is_refused(reader: type[BuiltInReader]) -> None:
    schema = json.dumps({"description": "x" * MAX_SCHEMA_CHARS})
    with pytest.raises(InvalidRequest, match="'response_format': longer than"):
        reader(card("", jinja=False)).read(Chat(messages=(USER,), schema=schema))


@pytest.mark.parametrize(
    ("template", "fields", "message"),
    [
        ("chatml", {"tools": (TOOL,)}, "tools param requires --jinja flag"),
        ("chatml", {"tool_choice": "required"}, "tool_choice param requires --jinja flag"),
        ("{{ messages }}", {}, "this custom template is not supported, try using --jinja"),
    ],
)
def test_without_jinja_what_needs_it_is_refused(
    template: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        BuiltInReader(card(template, jinja=False)).read(Chat(messages=(USER,), **fields))


# ---- unparsed ----------------------------------------------------------------------------------


def answered(reader: ConversationReader, chat: Chat, text: str) -> str:
    """Return the content of an answer in these words."""
    expected = reader.read(chat).expected
    assert expected is not None
    parser = ChatParser(expected)
    parts = [parser.feed(text), parser.finish()]
    assert not any(part.reasoning or part.tool_calls for part in parts)
    return "".join(part.content for part in parts)


def test_an_unparsed_answer_is_what_the_model_writes() -> None:
    reader = ConversationReader(card(THINKER, parses_chats=False))
    text = '<think>\nhm</think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    chat = Chat(messages=(USER,), tools=(TOOL,), reasoning_format="deepseek")
    assert answered(reader, chat, text) == text
    assert answered(reader, chat, "\n\n Hi") == "Hi"
    assert '"name": "f"' in reader.read(chat).text
    assert reader.read(chat).grammar == ""


def test_an_unparsed_answer_keeps_to_its_schema() -> None:
    reader = ConversationReader(card(HERMES, parses_chats=False))
    prompt = reader.read(Chat(messages=(USER,), schema='{"type": "integer"}'))
    assert "root ::= " in prompt.grammar


# ---- variables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"preserve_reasoning": True}),
        ({"reasoning_preserve": False}, {"preserve_reasoning": False}),
        ({"reasoning": "off"}, {"preserve_reasoning": True, "enable_thinking": False}),
        ({"reasoning": "on"}, {"preserve_reasoning": True, "enable_thinking": True}),
        ({"reasoning_effort": "low"}, {"preserve_reasoning": True, "reasoning_effort": "low"}),
        (
            {"template_kwargs": '{"a": [1], "enable_thinking": true}', "reasoning": "off"},
            {"preserve_reasoning": True, "a": [1], "enable_thinking": False},
        ),
        ({"template_kwargs": '{"preserve_reasoning": false}'}, {"preserve_reasoning": False}),
    ],
    ids=json.dumps,
)
def test_options_become_variables_of_every_chat(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert WorkerConfig(**fields).chat_variables == expected


def rendered(template: str, **kwargs: Any) -> str:
    return ConversationReader(card(template)).read(Chat(messages=(USER,), kwargs=kwargs)).text


def test_thinking_turned_off_reaches_the_template() -> None:
    assert rendered(THINKER, enable_thinking=True).endswith("[assistant]")
    assert rendered(THINKER, enable_thinking=False).endswith("<think>\n\n</think>\n\n")


def test_two_variables_have_all_the_names_that_templates_know_them_by() -> None:
    names = ["preserve_thinking", "clear_thinking", "truncate_history_thinking", "drop_thinking"]
    template = "{{ [" + ", ".join(names) + ", reasoning_strength] }}"
    assert rendered(template, preserve_reasoning=True).startswith("[True, False, False, False, ")
    assert rendered(template, preserve_reasoning=False).startswith("[False, True, True, True, ")
    assert rendered(template, reasoning_effort="high").endswith("'high']")
    assert rendered(template, preserve_reasoning=True, drop_thinking="x").count("'x'") == 1


def test_a_variable_may_be_called_like_an_argument_of_the_library() -> None:
    assert rendered("{{ [context, args, messages | length] }}", context=1, args=2) == "[1, 2, 1]"
    assert rendered("{{ messages[0].content }}", self=1) == USER["content"]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("none | default('x')", "x"),
        ("messages[0].get('name') | default('x')", "x"),
        ("nothing.at.all | default('x')", "x"),
        ("false | default('x')", "False"),
        ("'' | default('x', boolean=true)", "x"),
        ("nothing | d", ""),
    ],
)
def test_a_default_stands_for_none_too_as_in_llama_cpp(expression: str, text: str) -> None:
    reader = ConversationReader(card(f"{{{{ {expression} }}}}"))
    assert reader.read(Chat(messages=({"role": "user", "content": "hi"},))).text == text
