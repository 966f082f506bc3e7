"""Tools, calls and template arguments that templates and their parsers were not written for."""

from typing import Any

from tests.hostile.case import CaseList, HostileCase, Target


def cases(target: Target) -> list[HostileCase]:
    """Return chats with odd tools, odd histories and odd template arguments."""
    found = CaseList("tools")
    for label, parameters in PARAMETERS.items():
        found.chat(label, tools=[_tool(parameters)])
        found.chat(f"{label}, required", tools=[_tool(parameters)], tool_choice="required")
    for label, fields in _FIELDS.items():
        found.chat(label, **fields)
    for label, messages in HISTORIES.items():
        found.chat(label, messages=messages)
    anthropic = {"name": "f", "input_schema": PARAMETERS["doubling"]}
    messages = [{"role": "user", "content": "Hi"}]
    found.post(
        "Anthropic's", "/v1/messages", {"messages": messages, "max_tokens": 2, "tools": [anthropic]}
    )
    responses = {"type": "function", "name": "f", "parameters": PARAMETERS["doubling"]}
    found.post(
        "of responses",
        "/v1/responses",
        {"input": "Hi", "max_output_tokens": 2, "tools": [responses]},
    )
    found.post(
        "counted",
        "/v1/chat/completions/input_tokens",
        {"messages": messages, "tools": [_tool(PARAMETERS["doubling"])]},
    )
    return found.cases


def _tool(parameters: Any, name: Any = "f") -> dict[str, Any]:
    function = {"name": name, "description": "d", "parameters": parameters}
    return {"type": "function", "function": function}


def _deep(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


PARAMETERS: dict[str, Any] = {
    "nullable": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
    "nullable array": {
        "properties": {"a": {"type": ["array", "null"], "items": {"type": ["null"]}}}
    },
    "union in a union": {"properties": {"a": {"type": [["string"], "null"]}}},
    "no type": {"properties": {"a": {}}},
    "type is a number": {"type": 5, "properties": {"a": {"type": 7}}},
    "properties is a list": {"type": "object", "properties": []},
    "parameters is a text": "x",
    "parameters is null": None,
    "deep": _deep(60),
    "too deep": _deep(400),
    "doubling": {
        "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
        | {"d40": {"type": "null"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
    },
    "circle": {
        "$defs": {"a": {"properties": {"a": {"$ref": "#/$defs/a"}}}},
        "properties": {"a": {"$ref": "#/$defs/a"}},
    },
    "many": {"properties": {f"p{i}": {"type": "string"} for i in range(3000)}},
    "enum of everything": {"properties": {"a": {"enum": [1, None, "x", [], {}, 1e300]}}},
    "names": {"properties": {"a b\n": {"type": "string"}, "</tool_call>": {"type": "string"}}},
    "patterns": {"properties": {"a": {"type": "string", "pattern": "^(a+)+(b{1,900}){1,900}$"}}},
}

_MANY = [_tool({}, f"f{i}") for i in range(1000)]
_FIELDS: dict[str, dict[str, Any]] = {
    "a thousand tools": {"tools": _MANY},
    "the same tool often": {"tools": [_tool({})] * 100, "tool_choice": "required"},
    "a long name": {"tools": [_tool({}, "f" * 100_000)]},
    "an empty name": {"tools": [_tool({}, "")]},
    "a number as name": {"tools": [_tool({}, 5)]},
    "an unknown kind": {"tools": [{"type": "computer"}]},
    "tools is an object": {"tools": {"a": 1}},
    "tools hold null": {"tools": [None, 1, "x", []]},
    "an unknown choice": {"tools": [_tool({})], "tool_choice": {"function": {"name": "g"}}},
    "choice is a list": {"tools": [_tool({})], "tool_choice": [1]},
    "choice without tools": {"tool_choice": "required"},
    "template arguments": {
        "chat_template_kwargs": {"messages": 1, "tools": "x", "raise_exception": 0}
    },
    "many template arguments": {"chat_template_kwargs": {f"k{i}": "v" for i in range(50_000)}},
    "nested template arguments": {"chat_template_kwargs": {"a": [[[[{"b": [1]}]]]]}},
    "dunder arguments": {
        "chat_template_kwargs": {"__class__": 1, "self": 2, "loop": 3, "range": 4}
    },
    "template": {"chat_template": "{% for i in range(10**9) %}{% endfor %}"},
    "enable_thinking": {"chat_template_kwargs": {"enable_thinking": "maybe"}},
}


def _call(arguments: Any, **extra: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": "1", "type": "function", "function": function} | extra


_USER = {"role": "user", "content": "Hi"}
HISTORIES: dict[str, list[Any]] = {
    "no messages": [],
    "messages hold null": [None],
    "content is missing": [{"role": "user"}],
    "content is null": [{"role": "user", "content": None}],
    "content is a number": [{"role": "user", "content": 5}],
    "content is an object": [{"role": "user", "content": {"a": 1}}],
    "parts without type": [{"role": "user", "content": [{}, {"text": 5}]}],
    "role is null": [{"role": None, "content": "x"}],
    "unknown role": [{"role": "emperor", "content": "x"}],
    "only the system": [{"role": "system", "content": "x"}],
    "two assistants": [{"role": "assistant", "content": "x"}] * 2,
    "a call without arguments": [_USER, {"role": "assistant", "tool_calls": [{"function": {}}]}],
    "arguments are no JSON": [_USER, {"role": "assistant", "tool_calls": [_call("{{{")]}],
    "arguments are a list": [_USER, {"role": "assistant", "tool_calls": [_call([1])]}],
    "arguments are deep": [
        _USER,
        {"role": "assistant", "tool_calls": [_call('{"a":' * 3000 + "1" + "}" * 3000)]},
    ],
    "arguments hold a huge number": [
        _USER,
        {"role": "assistant", "tool_calls": [_call('{"a": 1' + "0" * 5000 + "}")]},
    ],
    "calls are an object": [_USER, {"role": "assistant", "tool_calls": {"a": 1}}],
    "many calls": [_USER, {"role": "assistant", "tool_calls": [_call("{}")] * 5000}],
    "a result for nothing": [_USER, {"role": "tool", "tool_call_id": "9", "content": "x"}],
    "a result of parts": [_USER, {"role": "tool", "content": [{"type": "text", "text": "x"}]}],
    "odd keys": [{"role": "user", "content": "x", "__class__": {}, "items": 1, "": 2}],
    "template in the content": [{"role": "user", "content": "{{ 7 * 7 }}{% raw %}{% endfor %}"}],
    "reasoning is a list": [{"role": "assistant", "content": "x", "reasoning_content": [1]}, _USER],
}
