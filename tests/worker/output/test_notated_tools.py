"""Calls whose arguments are almost JSON: those of Gemma 4 and LFM2."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.wire.messages import Finish
from tests.worker.chat_cases import BY_NAME
from tests.worker.grammar.test_matcher import follower, say
from tests.worker.output.test_chat_parse import parse
from tests.worker.prompt.test_conversation import CALLED, RESULT, TIME, USER, WEATHER, read
from tests.worker.served import Served
from worker.grammar.gbnf.parser import parse as parse_grammar
from worker.output.chat_parser.parser import ExpectedParts
from worker.output.formats.choice import choose_format
from worker.output.formats.reasoning_marks import listed_reasoning_marks

GEMMA = r"""{% if tools %}{{ tools | tojson }}{% endif %}
{%- macro write(value) %}{% if value is string %}{{ '<|"|>' + value + '<|"|>' }}
{%- else %}{{ value }}{% endif %}{% endmacro %}
{%- for message in messages %}{{- '[' + message.role + ']' + message.content + '\n' }}
{%- for call in message.tool_calls or [] %}
{{- '<|tool_call>call:' + call.function.name + '{' }}
{%- for key, value in call.function.arguments | dictsort %}
{{- key + ':' + write(value) + ('' if loop.last else ',') }}{% endfor %}
{{- '}<tool_call|>' }}
{%- endfor %}{%- endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""
LFM = r"""{% if tools %}{{ 'List of tools: [' + tools | tojson + ']' }}{% endif %}
{%- for message in messages %}
{{- '[' + message.role + ']' + (message.thinking or '') + message.content + '\n' }}
{%- if message.tool_calls %}{{ '<|tool_call_start|>[' }}
{%- for call in message.tool_calls %}{{- call.function.name + '(' }}
{%- for key, value in call.function.arguments.items() %}
{{- key + "='" + value + "'" + ('' if loop.last else ', ') }}{% endfor %}
{{- ')' + ('' if loop.last else ', ') }}{% endfor %}{{ ']<|tool_call_end|>' }}
{%- endif %}{%- endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}
{#- <think> #}"""
TEMPLATES = {
    "gemma-4": GEMMA,
    "lfm2": LFM.replace("[' +", "<|tool_list_start|>[' +").replace(
        "']'", "']<|tool_list_end|>'", 1
    ),
    "lfm2.5": LFM,
}
NAMES = sorted(TEMPLATES)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "n": {"type": "integer", "minimum": 1},
        "size": {"enum": ["S", "it's", None, 2.5]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "pair": {"prefixItems": [{"type": "number"}, {"type": "boolean"}]},
        "more": {
            "type": "object",
            "properties": {"again": {"$ref": "#"}, "flag": {"type": "boolean"}},
            "required": ["flag"],
        },
        "any": {},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["n", "code"],
}
TOOL = {"type": "function", "function": {"name": "python", "parameters": SCHEMA}}


def gemma(value: Any) -> str:
    """Write a value as Gemma 4 does."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(gemma, value))}]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def python(value: Any) -> str:
    """Write a value as LFM2 does."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python(key)}: {python(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(python, value))}]"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(value) % 2 else "'" + text[1:-1].replace("'", "\\'") + "'"
    return repr(value)


def written(name: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """Write calls as a model does."""
    if name == "gemma-4":
        return "".join(f"<|tool_call>call:{tool}{gemma(args)}<tool_call|>" for tool, args in calls)
    texts = (
        f"{tool}({', '.join(f'{key}={python(value)}' for key, value in args.items())})"
        for tool, args in calls
    )
    return f"<|tool_call_start|>[{', '.join(texts)}]<|tool_call_end|>"


def expect(name: str) -> ExpectedParts:
    """What the prompt of a format lets one expect."""
    return ExpectedParts(
        tools=BY_NAME[name],
        names=frozenset({"python", "get_time"}),
        reasoning_marks=listed_reasoning_marks(TEMPLATES[name]),
    )


ONE = {"code": 'if a < b:\n\t"x" \\ {}[],:', "n": 1}
DEEP = {"n": -2.5e3, "code": "", "more": {"flag": True, "list": [[], {}, None, "é", [1, "2"]]}}
EMPTY: dict[str, Any] = {}
REASONING = {
    "gemma-4": "<|channel>thought\nHm<channel|>",
    "lfm2": "",
    "lfm2.5": "<think>Hm</think>",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_template_is_told_by_its_marks(name: str) -> None:
    assert choose_format(TEMPLATES[name]).name == name


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_taken_apart(name: str) -> None:
    calls = ("python", ONE), ("get_time", EMPTY), ("python", DEEP)
    for n in range(4):
        text = f"{REASONING[name]}Hi {written(name, *calls[:n]) if n else ''}"
        whole = parse(expect(name), [text])
        assert (whole.reasoning, whole.content) == ("Hm" if REASONING[name] else "", "Hi ")
        assert [(tool, json.loads(args)) for tool, args in whole.calls] == list(calls[:n])
        for cut in range(len(text)):
            assert parse(expect(name), [text[:cut], text[cut:]]) == whole
        assert parse(expect(name), list(text)) == whole


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma-4", "<|tool_call>call:unheard_of{}<tool_call|>"),
        ("gemma-4", '<|tool_call>call:python("a")<tool_call|>'),
        ("gemma-4", "<|tool_call>call:python{oops}<tool_call|>"),
        ("gemma-4", f"<|tool_call>call:python{{{'x' * 300}"),
        ("lfm2", "<|tool_call_start|>[unheard_of()]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[python(oops)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>python()<|tool_call_end|>"),
        ("lfm2", "or, python(n=1)"),
    ],
)
def test_what_only_looked_like_a_call_is_content(name: str, text: str) -> None:
    for parts in ([text], list(text)):
        answer = parse(expect(name), parts)
        assert (answer.content, answer.calls) == (text, ())


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("gemma-4", '{n:1, code: <|"|>a<|"|> }', '{"n":1,"code":"a"}'),
        ("gemma-4", "{n:oops}", '{"n":oops}'),
        ("gemma-4", '{n:"a"}', '{"n":"a"}'),
        ("gemma-4", '{n:<|"|>a<|', '{"n":"a'),
        ("lfm2", "(n = 1 ,code ='a')", '{"n":1,"code":"a"}'),
        ("lfm2", "(more={'a': true, \"b\": [None]})", '{"more":{"a":true,"b":[null]}}'),
        ("lfm2", r"""(code='\'"\"\n\d\u00e9\u12')""", r"""{"code":"'\"\"\n\\d\u00e9\\u12"}"""),
        ("lfm2", "(more={1: 2})", '{"more":{1: 2})'),
        ("lfm2", "(n=oops)]<|tool_call_end|>", '{"n":oops)'),
        ("gemma-4", "{more:" + "[" * 300, '{"more":' + "[" * 300),
    ],
)
def test_arguments_come_out_as_json_or_as_they_are(name: str, text: str, arguments: str) -> None:
    head = written(name, ("python", EMPTY)).partition("python")[0] + "python"
    for parts in ([head + text], list(head + text)):
        assert parse(expect(name), parts).calls == (("python", arguments),)


TEXT = st.text().filter(lambda text: "<" not in text)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abz_-09", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("name", NAMES)
@given(arguments=st.dictionaries(st.text("abz_09", min_size=1), VALUES), cut=st.integers(0, 200))
def test_arguments_come_through_as_they_were_written(
    name: str, arguments: dict[str, Any], cut: int
) -> None:
    text = written(name, ("python", arguments))
    ((tool, found),) = parse(expect(name), [text[:cut], text[cut:]]).calls
    assert tool == "python" and json.loads(found) == arguments
    assert parse(expect(name), list(text)).calls == ((tool, found),)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("choice", ["auto", "required", "function:python"])
def test_there_is_a_grammar(name: str, choice: str) -> None:
    prompt = read(TEMPLATES[name], USER, tools=(TOOL, TIME), tool_choice=choice)
    parse_grammar(prompt.grammar)
    trigger = written(name, ("x", EMPTY)).partition(">")[0] + ">"
    assert prompt.triggers == ((trigger,) if choice == "auto" else ())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_grammar_takes_what_the_schema_allows(name: str) -> None:
    grammar = read(TEMPLATES[name], USER, tools=(TOOL, TIME), tool_choice="required").grammar
    inner = {"flag": False, "again": {"n": 2, "code": "", "tags": []}}
    for calls in (
        [ONE],
        [ONE, ONE],
        [{"code": "<", "n": 12}],
        [{"size": "it's", "n": 1, "tags": ["a", "b"], "code": "x", "map": {"a": 1, "b": 2}}],
        [{"n": 1, "size": None, "code": "x", "more": inner, "pair": [1.5, True]}],
        [{"n": 1, "size": 2.5, "code": "x", "any": [{"a": None, "b": {}}, [], "c", -1]}],
    ):
        one = follower(grammar)
        say(one, written(name, *(("python", call) for call in calls), ("get_time", EMPTY)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"n": 1},
        {"n": 0, "code": ""},
        {"n": "1", "code": ""},
        {"n": 1, "code": 1},
        {"n": 1, "code": "", "new": 1},
        {"n": 1, "code": "", "size": "M"},
        {"n": 1, "code": "", "tags": ["a", "b", "c"]},
        {"n": 1, "code": "", "more": {}},
        {"n": 1, "code": "", "map": {"a": "b"}},
    ],
)
def test_the_grammar_refuses_what_the_schema_forbids(name: str, arguments: dict[str, Any]) -> None:
    grammar = read(TEMPLATES[name], USER, tools=(TOOL,), tool_choice="required").grammar
    with pytest.raises(Exception, match="grammar"):
        say(follower(grammar), written(name, ("python", arguments)))


@pytest.mark.parametrize("name", NAMES)
def test_many_required_arguments_come_as_the_template_writes_them(name: str) -> None:
    names = [f"a{i}" for i in range(20)]
    schema = {"properties": {one: {"type": "null"} for one in names} | {"b": {}}, "required": names}
    tool = {"type": "function", "function": {"name": "python", "parameters": schema}}
    grammar = read(TEMPLATES[name], USER, tools=(tool,), tool_choice="required").grammar
    orders = names, sorted(names)
    right, wrong = orders[::-1] if name == "gemma-4" else orders
    say(follower(grammar), written(name, ("python", dict.fromkeys(right) | {"b": 1})))
    with pytest.raises(Exception, match="grammar"):
        say(follower(grammar), written(name, ("python", dict.fromkeys(wrong))))


@pytest.mark.parametrize("name", NAMES)
def test_many_tools_have_a_short_grammar(name: str) -> None:
    members = {f"argument_{i}": {"type": "string"} for i in range(16)}
    schema = {"properties": members, "required": list(members)[:4]}
    tools = tuple({"function": {"name": f"tool_{i}", "parameters": schema}} for i in range(40))
    grammar = read(TEMPLATES[name], USER, tools=tools, tool_choice="required").grammar
    assert len(grammar) < 40 * 6_000


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_without_end_is_refused(name: str) -> None:
    again: dict[str, Any] = {"allOf": [{"properties": {"x": {"$ref": "#"}}}, {"$ref": "#/$defs/a"}]}
    schema = again | {"$defs": {"a": {"properties": {"y": again}}}}
    tool = {"type": "function", "function": {"name": "python", "parameters": schema}}
    with pytest.raises(InvalidRequest):
        read(TEMPLATES[name], USER, tools=(tool,), tool_choice="required")


@pytest.mark.parametrize("name", NAMES)
def test_earlier_calls_are_written_by_the_template(name: str) -> None:
    prompt = read(TEMPLATES[name], USER, CALLED, RESULT, tools=(WEATHER,))
    assert written(name, ("get_weather", {"city": "Rome"})) in prompt.text


def test_lfm2_reads_earlier_reasoning_under_another_name() -> None:
    prompt = read(TEMPLATES["lfm2.5"], USER, CALLED | {"reasoning_content": "Hm"}, RESULT)
    assert "[assistant]Hm" in prompt.text


RESULTS = r"""{%- for message in messages %}{{- '[' + message.role + ']' }}
{%- for call in message.tool_calls or [] %}
{{- '<|tool_call>call:' + call.function.name }}{% endfor %}
{%- for one in message.tool_responses or [] %}
{{- '(' ~ one.name ~ '=' ~ one.response ~ ')' }}{% endfor %}
{{- (message.reasoning_content or '') + (message.content or '') + '<turn|>\n' }}{% endfor %}
{%- if add_generation_prompt and not messages[-1].tool_calls %}{{ '<|turn>model\n' }}{% endif %}
{#- tools '<|tool_call>call:' #}"""
THOUGHT_AND_CALLED = CALLED | {"content": "words", "reasoning_content": "Hm"}
ANSWER = {"role": "assistant", "content": "Sunny."}


@pytest.mark.parametrize(
    ("later", "text"),
    [
        ([], "get_weatherHm<turn|>\n<|turn>model\n"),
        ([RESULT], "get_weather(get_weather=sunny)Hm<turn|>\n<|turn>model\n"),
        (
            [RESULT | {"content": '{"a": 1}'}, RESULT, ANSWER, USER],
            "get_weather(get_weather={'a': 1})(1=sunny)HmSunny.<turn|>\n[user]hi<turn|>\n"
            "<|turn>model\n",
        ),
        ([RESULT, CALLED, RESULT | {"content": None}], None),
    ],
)
def test_older_gemma_templates_get_results_in_the_message_that_called(
    later: list[dict[str, Any]], text: str | None
) -> None:
    prompt = read(RESULTS, USER, THOUGHT_AND_CALLED, *later)
    if text is None:
        assert "(get_weather=)" in prompt.text
        assert prompt.text.count("[assistant]") == 2 and "[tool]" not in prompt.text
    else:
        assert prompt.text == f"[user]hi<turn|>\n[assistant]<|tool_call>call:{text}"


def test_newer_gemma_templates_read_results_themselves() -> None:
    source = RESULTS + "{#- OpenAI Chat Completions: #}"
    assert "[tool]sunny" in read(source, USER, CALLED, RESULT).text


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Hi<|channel>thought\n<channel|>", "", "Hi"),
        ("Hi<channel|>", "", "Hi"),
        ("<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d", "ac", "bd"),
    ],
)
def test_gemma_may_reason_again_and_end_it_twice(text: str, reasoning: str, content: str) -> None:
    for parts in ([text], list(text)):
        answer = parse(expect("gemma-4"), parts)
        assert (answer.reasoning, answer.content) == (reasoning, content)


def test_gemma_goes_on_after_reasoning_as_the_template_writes_it() -> None:
    partial = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm"}
    prompt = read(GEMMA, USER, partial, continue_final_message=True)
    assert prompt.text.endswith("[assistant]<|channel>thought\nHm<channel|>Hi")


def bounded() -> dict[str, Any]:
    """The tool without what a hot model need not end: free text, and what may be said again."""
    properties = {key: SCHEMA["properties"][key] for key in ("n", "size", "pair")}
    properties["tags"] = {"items": {"enum": ["a", "it's"]}, "minItems": 1, "maxItems": 2}
    parameters = {"properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": "python", "parameters": parameters}}


@pytest.mark.model
@pytest.mark.parametrize("name", ["gemma-4", "lfm2.5"])
def test_the_model_writes_what_the_parser_reads(name: str, single: Served) -> None:
    tools = (bounded(),)
    grammar = read(TEMPLATES[name], USER, tools=tools, parallel_tool_calls=False).grammar
    # It begins with the call.
    answer = single.ask("Call python.", grammar=grammar, n_predict=400, seed=2, temperature=1.5)
    assert answer.done.finish is Finish.EOS, answer.text
    ((tool, text),) = parse(expect(name), [answer.text]).calls
    found = json.loads(text)
    assert tool == "python" and found["n"] >= 1 and found["size"] in ["S", "it's", None, 2.5]
    assert 1 <= len(found["tags"]) <= 2 and set(found["tags"]) <= {"a", "it's"}
    assert isinstance(found["pair"][1], bool)
