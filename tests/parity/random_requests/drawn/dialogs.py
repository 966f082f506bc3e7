"""Chats with what templates treat in ways of their own: reasoning, calls, results, parts, roles."""

from collections.abc import Mapping
from typing import Any

_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_WEATHER = {"name": "weather", "description": "Tells the weather", "parameters": _CITY}
_TOOLS = [
    {"type": "function", "function": _WEATHER},
    {"type": "function", "function": {"name": "now", "description": "Tells the time"}},
]
_USER = {"role": "user", "content": "Hi"}
_DEVELOPER = {"role": "developer", "content": "Be brief."}


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _says(content: Any = "Hello", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def _calls(content: Any = "", arguments: Any = '{"city": "Rome"}', **fields: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "call12345", "type": "function", "function": function}
    return _says(content, tool_calls=[call], **fields)


def _result(content: Any = "sunny") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call12345", "content": content}


def _chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


def _tools(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), "tools": _TOOLS, **fields}


_THOUGHT = _calls(reasoning_content="I look.")

DIALOGS: Mapping[str, dict[str, Any]] = {
    "reasoning": _chat(_USER, _says(reasoning_content="Hm."), _USER),
    "reasoning, not kept": _chat(
        *(_USER, _says(reasoning_content="Hm."), _USER),
        chat_template_kwargs={"preserve_reasoning": False},
    ),
    "reasoning in the text": _chat(_USER, _says("<think>\nHm.\n</think>\n\nHello"), _USER),
    "no reasoning": _chat(_USER, chat_template_kwargs={"enable_thinking": False}),
    "effort": _chat(_USER, reasoning_effort="low"),
    "reasoning before a call": _tools(_USER, _THOUGHT, _result()),
    "reasoning, words and a call": _tools(
        _USER, _calls("Let me see.", reasoning_content="I look."), _result()
    ),
    "reasoning before two calls": _tools(_USER, _THOUGHT, _result(), _THOUGHT, _result()),
    "tools": _tools(_DEVELOPER, _USER),
    "call without content": _tools(_USER, _calls(None), _result(), _says(), _USER),
    "arguments as an object": _tools(_USER, _calls(arguments={"city": "Rome"}), _result()),
    "arguments beyond ASCII": _tools(
        _USER, _calls(arguments='{"city": "\u6f22\u2028"}'), _result()
    ),
    "result as JSON": _tools(_USER, _calls(), _result('{"degrees": 20}')),
    "result in parts": _tools(_USER, _calls(), _result(_parts("sun", "ny"))),
    "parts": _chat(
        {"role": "system", "content": _parts("Be", "brief.")},
        *({"role": "user", "content": _parts("Hi", "there")}, _says(_parts("Hel", "lo")), _USER),
    ),
    "nothing said": _chat(_USER, _says(""), _USER),
    "null said": _chat(_USER, _says(None), _USER),
    "marks in the text": _chat(_USER, _says("<|channel|>final<|message|>Yes."), _USER),
    "names": _chat({**_USER, "name": "Ann"}, _says(name="Bob"), {**_USER, "name": "Eve"}),
    "developer": _chat(_DEVELOPER, _USER),
    "system in the midst": _chat(_USER, _says(), {"role": "system", "content": "Stop."}, _USER),
    "white space": _chat({"role": "user", "content": " \n Hi \t"}, _says("\n\nHello \n"), _USER),
    "continued": _chat(_USER, _says("The sky is")),
    "continued reasoning": _chat(_USER, _says("", reasoning_content="Hm, ")),
    "no messages": _chat(),
}
