"""Tools of templates that write each argument in its own tags: history, grammar, answers."""

import json
from itertools import permutations
from typing import Any

import pytest

from tests.worker.grammar.test_matcher import follower, say
from tests.worker.output.format_templates import TAGGED_TEMPLATES
from tests.worker.output.test_chat_parse import parse
from tests.worker.prompt.test_conversation import CALLED, RESULT, TIME, USER, WEATHER, read
from tests.worker.served import Served
from tests.worker.tagged_cases import kimi, muse
from worker.grammar.gbnf.parser import parse as parse_grammar
from worker.grammar.parameters import argument_types
from worker.output.formats.choice import FORMATS, GENERIC, choose_format

_MESSAGES = r"""{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}{{- '[' + message.role + ']' + message.content + '\n' }}
{%- for call in message.tool_calls or [] %}
{{- OPEN }}
{%- for key, value in call.function.arguments | items %}{{- ARGUMENT }}{% endfor %}
{{- CLOSE }}
{%- endfor %}{%- endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""


def template(begin: str, argument: str, close: str) -> str:
    """A template that writes calls in some way."""
    text = _MESSAGES.replace("OPEN", begin).replace("CLOSE", close)
    return text.replace("ARGUMENT", argument)


TEMPLATES = {
    "qwen3-coder": template(
        r"'<tool_call>\n<function=' + call.function.name + '>\n'",
        r"'<parameter=' + key + '>\n' + value + '\n</parameter>\n'",
        r"'</function>\n</tool_call>\n'",
    ),
    "seed-oss": template(
        r"'<seed:tool_call>\n<function=' + call.function.name + '>\n'",
        r"'<parameter=' + key + '>' + value + '</parameter>\n'",
        r"'</function>\n</seed:tool_call>\n'",
    ),
    "glm-4.5": template(
        r"'<tool_call>' + call.function.name + '\n'",
        r"'<arg_key>' + key + '</arg_key>\n<arg_value>' + value + '</arg_value>\n'",
        r"'</tool_call>\n'",
    ),
    "minimax-m2": template(
        r"""'<minimax:tool_call>\n<invoke name="' + call.function.name + '">\n'""",
        r"""'<parameter name="' + key + '">' + value + '</parameter>\n'""",
        r"'</invoke>\n</minimax:tool_call>\n'",
    ),
    "kimi-k3": template(
        r"""'<|open|>tools<|sep|><|open|>call tool="' + call.function.name + '" index="1"'
            + '<|sep|>'""",
        r"""'<|open|>argument key="' + key + '" type="string"<|sep|>' + value
            + '<|close|>argument<|sep|>'""",
        r"""'<|close|>call<|sep|><|close|>tools<|sep|>'""",
    )
    + "{#- <|end_of_msg|> #}",
    "muse-glimmer": template(
        r"""'<|start|>assistant to=' + call.function.name + '<|message|><atem:function_calls>\n'
            + '<atem:invoke name="' + call.function.name + '">\n'""",
        r"""'<atem:parameter name="' + key + '">' + value + '</atem:parameter>\n'""",
        r"""'</atem:invoke>\n</atem:function_calls><|eom|>'""",
    ).replace("[assistant]", "<|start|>assistant"),
}
TEMPLATES["qwen3.5"] = TEMPLATES["qwen3-coder"] + r"{#- '<think>\n' '</think>\n\n' #}"
TEMPLATES |= TAGGED_TEMPLATES
NAMES = sorted(TEMPLATES)

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "amount": {"type": "integer", "minimum": 1, "maximum": 99},
        "size": {"enum": ["S", "L"]},
        "gift": {"$ref": "#/$defs/gift"},
        "days": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
        "to": {"type": ["string", "null"]},
    },
    "required": ["amount", "size", "gift"],
    "$defs": {"gift": {"type": "boolean"}},
}
ORDER_TOOL = {"type": "function", "function": {"name": "order", "parameters": ORDER}}


def test_all_formats_are_here() -> None:
    assert {row.name for row in FORMATS if row.tagged} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_template_is_told_by_its_tags(name: str) -> None:
    assert choose_format(TEMPLATES[name]).name == name


def test_tags_on_one_line_are_another_format() -> None:
    source = "tools '<tool_call><function=' ~ tool_call.name ~ '>' <parameter="
    assert choose_format(source) is GENERIC


@pytest.mark.parametrize("name", NAMES)
def test_earlier_calls_are_taken_apart_for_the_template(name: str) -> None:
    prompt = read(TEMPLATES[name], USER, CALLED, RESULT, tools=(WEATHER,))
    assert "get_weather" in prompt.text and "Rome" in prompt.text
    row = choose_format(TEMPLATES[name])
    assert row.tagged is not None and row.tagged.close in prompt.text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("choice", ["auto", "required", "function:order"])
def test_there_is_a_grammar(name: str, choice: str) -> None:
    prompt = read(TEMPLATES[name], tools=(ORDER_TOOL, TIME), tool_choice=choice)
    parse_grammar(prompt.grammar)
    assert bool(prompt.triggers) == (choice == "auto")


def test_the_grammar_waits_for_any_beginning_of_a_call() -> None:
    prompt = read(TEMPLATES["qwen3-coder"], tools=(WEATHER, TIME))
    assert prompt.triggers == ("<tool_call>", "<function=get_weather>", "<function=get_time>")
    assert read(TEMPLATES["qwen3.5"], tools=(WEATHER,)).triggers == ("<tool_call>",)


def blocks(*keys: str) -> str:
    values = {"amount": "12", "size": "S", "gift": "true", "note": "Hi"}
    given = "".join(f"<parameter={key}>\n{values[key]}\n</parameter>\n" for key in keys)
    return f"<tool_call>\n<function=order>\n{given}</function>\n</tool_call>"


@pytest.mark.slow
def test_required_arguments_come_in_any_order_and_others_between_them() -> None:
    grammar = read(TEMPLATES["qwen3.5"], tools=(ORDER_TOOL,), tool_choice="required").grammar
    for keys in permutations(("amount", "size", "gift", "note")):
        say(follower(grammar), blocks(*keys))
    for keys in (("size", "gift"), ("size", "size", "gift", "amount"), ()):
        with pytest.raises(Exception, match="grammar"):
            say(follower(grammar), blocks(*keys))


@pytest.mark.slow
@pytest.mark.parametrize(("n_tools", "is_free"), [(40, True), (100, False)])
def test_many_tools_of_six_required_arguments_have_a_grammar(n_tools: int, is_free: bool) -> None:
    names = {f"tool_{i}": [f"argument_{n}_of_tool_{i}" for n in range(6)] for i in range(n_tools)}
    tools = tuple(
        {"function": {"name": name, "parameters": {"properties": found, "required": [*found]}}}
        for name, keys in names.items()
        for found in [{key: {"type": "string"} for key in keys}]
    )
    grammar = read(TEMPLATES["kimi-k3"], tools=tools, tool_choice="required").grammar
    name, keys = names.popitem()
    last = kimi((name, "string", dict.fromkeys(keys, "x"))).removesuffix("<|end_of_msg|>")
    say(follower(grammar), last)
    if is_free:
        back = kimi((name, "string", dict.fromkeys(keys[::-1], "x")))
        say(follower(grammar), back.removesuffix("<|end_of_msg|>"))


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, {"string", "number", "boolean", "null", "array", "object"}),
        ({"type": "integer"}, {"number"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "array"}, {"properties": {}}]}, {"array", "object"}),
        ({"enum": ["a", 1, None]}, {"string", "number", "null"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/x"}, {"string"}),
        ({"allOf": [{"type": "string"}, {}]}, {"string"}),
        ({"prefixItems": [{}]}, {"array"}),
        ({"type": "boolean"}, {"boolean"}),
    ],
)
def test_the_schema_says_which_types_an_argument_has(
    schema: dict[str, Any], types: set[str]
) -> None:
    parameters = {"properties": {"a": schema}, "$defs": {"x": {"type": "string"}}}
    assert argument_types({"name": "f", "parameters": parameters}) == {"a": types}


@pytest.mark.parametrize("parameters", [None, {}, {"type": "string"}])
def test_a_tool_may_take_nothing(parameters: Any) -> None:
    assert argument_types({"name": "f", "parameters": parameters}) == {}


def bounded() -> dict[str, Any]:
    """The tool without what a hot model need not end: free text, and what may be said again."""
    properties = {key: ORDER["properties"][key] for key in ("amount", "size", "gift", "days")}
    parameters = {**ORDER, "properties": properties, "required": list(properties)}
    function = {"name": "order", "parameters": parameters}
    return {"type": "function", "function": function}


@pytest.mark.model
@pytest.mark.parametrize("name", ["glm-4.5", "qwen3-coder"])
def test_a_hot_sample_is_a_call_that_fits_the_schema(single: Served, name: str) -> None:
    prompt = read(
        TEMPLATES[name],
        tools=(bounded(),),
        tool_choice="required",
        parallel_tool_calls=False,
    )
    assert prompt.expected is not None
    # Rounding decides what a seed gives, but the grammar bounds every call: about 300 characters.
    hot = {"temperature": 1.5, "top_k": 0, "top_p": 1, "n_predict": 400, "seed": 1}
    answer = single.ask("Order:", grammar=prompt.grammar, **hot)
    content, _, ((_, text),) = parse(prompt.expected, list(answer.text))
    assert not content
    order = json.loads(text)
    assert 1 <= order["amount"] <= 99 and order["size"] in "SL"
    assert isinstance(order["gift"], bool)
    assert len(order["days"]) <= 2 and set(order["days"]) <= {1, 2}


def test_kimi_k3_tells_types_and_ends_its_message() -> None:
    grammar = read(TEMPLATES["kimi-k3"], tools=(ORDER_TOOL, TIME), tool_choice="required").grammar
    found = kimi(("get_time", "", {}), ("order", "string", {"size": "S"})).replace(
        "<|close|>call<|sep|><|close|>tools",
        '<|open|>argument key="gift" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="amount" type="number"<|sep|>12<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools",
    )
    text = f"<|open|>think<|sep|>Hm<|close|>think<|sep|>{found.removesuffix('<|end_of_msg|>')}"
    say(follower(grammar), text)
    for wrong in ('"boolean"', "true", "12", ">S<"):
        with pytest.raises(Exception, match="grammar"):
            say(follower(grammar), text.replace(wrong, ">M<" if wrong == ">S<" else '"number"'))


def test_muse_glimmer_is_held_to_calls_once_it_addresses_a_tool() -> None:
    prompt = read(TEMPLATES["muse-glimmer"], tools=(ORDER_TOOL, TIME))
    assert prompt.triggers == (" to=order<|message|>", " to=get_time<|message|>")
    calls = muse("get_time", {}), muse("order", {"size": "S", "gift": "true", "amount": "12"})
    say(follower(prompt.grammar), "<|eom|><|start|>assistant".join(calls))
    grammar = read(TEMPLATES["muse-glimmer"], tools=(TIME,), tool_choice="required").grammar
    say(follower(grammar), f" to=self<|message|>Hm<|eom|><|start|>assistant{calls[0]}")
    with pytest.raises(Exception, match="grammar"):
        say(follower(grammar), " to=user<|message|>")
