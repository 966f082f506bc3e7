"""Converts messages to the form that a template needs: roles, content, arguments of calls."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from protocol.errors import InvalidRequest
from protocol.wire.messages import content_text
from worker.output.formats.tool_format import ToolFormat
from worker.prompt.chat.template import ChatTemplate
from worker.prompt.chat.tool_results import join_results

Messages = Sequence[Mapping[str, Any]]

_TRIMS = "You have access to the following functions in JSONSchema format"
"""In StepFun's templates, whose models reason without end about white space around a text."""

_SPACE = " \t\n\v\f\r"

_USER = {"role": "user", "content": "needle-text"}


class _WatchedList(list[Any]):
    """Notices that its items are asked for; templates that print it do not."""

    is_read = False

    def __iter__(self) -> Iterator[Any]:
        self.is_read = True
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        self.is_read = True
        return super().__getitem__(index)


class TemplateAbilities:
    """Abilities of a template, detected by rendering small conversations."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._printed: dict[str, bool] = {}
        self.trims = _TRIMS in template.source
        """Whether white space around each text is left out, as llama.cpp does."""

    @cached_property
    def wants_objects(self) -> bool:
        """Whether arguments of earlier calls must be objects, not JSON strings."""
        if self._shows('"needle": "needle-value"', _OBJECTS):
            return True
        # Arguments that are not printed as a Python dict are written one by one, each in its tags.
        if self._shows("needle-value", _OBJECTS) and not self._shows("{'needle'", _OBJECTS):
            return True
        return self._shows("needle-value", _OBJECTS) and not self._shows("needle-value", _TEXTS)

    @cached_property
    def writes_calls(self) -> bool:
        """Whether earlier calls are rendered."""
        return any(self._shows("needle-value", messages) for messages in (_OBJECTS, _TEXTS))

    @cached_property
    def takes_blocks(self) -> bool:
        """Whether earlier reasoning is a block of the content, not a field of the message."""
        field = {"role": "assistant", "content": "Hm", "reasoning_content": "needle-thought"}
        blocks = [_USER, _as_blocks(field), _USER]
        is_printed = any(self._shows(f"{mark}needle-thought{mark}", blocks) for mark in "'\"")
        is_known = self._shows("needle-thought", blocks) and not is_printed
        return is_known and not self._shows("needle-thought", [_USER, field, _USER])

    @cached_property
    def takes_parts(self) -> bool:
        """Whether a content may be a list of texts: llama.cpp asks if an empty one is read too."""
        is_printed = any(self._shows(f"{mark}needle-text{mark}", _PARTS) for mark in "'\"")
        if is_printed or not self._shows("needle-text", _PARTS):
            return False
        empty = _WatchedList()
        self._shows("", [{"role": "user", "content": empty}])
        return empty.is_read or not self._shows("needle-text", [_USER])

    @cached_property
    def needs_parts(self) -> bool:
        """Whether a content must be a list of texts."""
        return self.takes_parts and not self._shows("needle-text", [_USER])

    def prints_parts(self, message: Mapping[str, Any]) -> bool:
        """Whether a list of texts in such a message is printed as Python writes it."""
        kind = _kind(message)
        if kind not in self._printed:
            examples = _EXAMPLES.get(kind, ())
            found = any(self._shows("'text': 'needle-text'", example) for example in examples)
            self._printed[kind] = found
        return self._printed[kind]

    @cached_property
    def takes_system(self) -> bool:
        """Whether a system message is rendered."""
        system = {"role": "system", "content": "needle-system"}
        return self._shows("needle-system", [system, _USER])

    @cached_property
    def joins_results(self) -> bool:
        """Whether results of tools must stand in the message that called: older Gemma 4."""
        source = self._template.source
        return "'<|tool_call>call:'" in source and "{#- OpenAI Chat Completions:" not in source

    def _shows(self, needle: str, messages: Messages) -> bool:
        """Whether a text is rendered, with or without tools, which some templates need."""
        for variables in ({}, {"tools": [_TOOL], "functions": "[]"}):
            try:
                if needle in self._template.render(messages, variables):
                    return True
            except InvalidRequest:
                continue
        return False


def _as_parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


_PARTS = [{"role": "user", "content": _as_parts("needle-text")}]


def _call(arguments: Any) -> dict[str, Any]:
    function = {"name": "needle_tool", "arguments": arguments}
    call = {"id": "123456789", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


_TOOL = {
    "type": "function",
    "function": {
        "name": "needle_tool",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
_RESULT = {"role": "tool", "content": "ok", "name": "needle_tool", "tool_call_id": "123456789"}
_ARGUMENTS = {"needle": "needle-value"}
_OBJECTS = [_USER, _call(_ARGUMENTS), _RESULT]
_TEXTS = [_USER, _call(json.dumps(_ARGUMENTS)), _RESULT]

_LISTED = {"content": _as_parts("needle-text")}
_EXAMPLES: Mapping[str, tuple[Messages, ...]] = {
    "system": ([_LISTED | {"role": "system"}, _USER],),
    "assistant": ([_USER, _LISTED | {"role": "assistant"}, _USER],),
    "calls": tuple([user, call | _LISTED, result] for user, call, result in (_OBJECTS, _TEXTS)),
    "tool": tuple([user, call, result | _LISTED] for user, call, result in (_OBJECTS, _TEXTS)),
}
"""Messages with a list, by their kind; what a user says is looked at before."""


def _kind(message: Mapping[str, Any]) -> str:
    kind = "calls" if message.get("tool_calls") else str(message.get("role"))
    kind = "system" if kind == "developer" else kind
    return kind if kind in _EXAMPLES else ""


def _as_blocks(message: Mapping[str, Any]) -> dict[str, Any]:
    """Write a message's reasoning as a block before its content."""
    content = message.get("content") or []
    words = _as_parts(content) if isinstance(content, str) else content
    thought = {"type": "thinking", "thinking": message["reasoning_content"]}
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return rest | {"content": [thought, *words]}


def adapt(
    messages: Messages, abilities: TemplateAbilities, tools: ToolFormat, *, keeps_developer: bool
) -> list[dict[str, Any]]:
    """Convert messages to the form that a template needs."""
    adapted = [_trimmed(message) if abilities.trims else dict(message) for message in messages]
    for message in adapted:
        message["content"] = _content(message, abilities)
        if message.get("role") == "developer" and not keeps_developer:
            message["role"] = "system"
        if tools.reasoning_key and message.get("reasoning_content"):
            message[tools.reasoning_key] = message["reasoning_content"]
            if tools.thinks_or_says and message.get("tool_calls"):
                message["content"] = ""
        if message.get("tool_calls"):
            if tools.is_array and not abilities.writes_calls:
                words = _in_words(message["tool_calls"], tools)
                message["content"] = content_text(message["content"]) + words
            read = _as_object if abilities.wants_objects else _as_text
            message["tool_calls"] = [_with(call, read) for call in message["tool_calls"]]
    if any(message.get("reasoning_content") for message in adapted) and abilities.takes_blocks:
        adapted = [_as_blocks(each) if each.get("reasoning_content") else each for each in adapted]
    if abilities.joins_results:
        adapted = join_results(adapted)
    if adapted and adapted[0].get("role") == "system" and not abilities.takes_system:
        adapted = _merge_system(adapted)
    return adapted


def _trimmed(message: Mapping[str, Any]) -> dict[str, Any]:
    trimmed = dict(message)
    for key in ("content", "reasoning_content"):
        value = message.get(key)
        if isinstance(value, list):
            trimmed[key] = [{**part, "text": part["text"].strip(_SPACE)} for part in value]
        elif value:
            trimmed[key] = value.strip(_SPACE)
    return trimmed


def _content(message: Mapping[str, Any], abilities: TemplateAbilities) -> Any:
    """Convert a content to a text, or to a list of texts, as llama.cpp does."""
    content = message.get("content")
    takes_parts = isinstance(content, list) and abilities.takes_parts
    if takes_parts and not abilities.prints_parts(message):
        return content
    text = content_text(content)
    return _as_parts(text) if text and abilities.needs_parts else text


def _merge_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the system message before the next one, as llama.cpp does where none is allowed."""
    system, *rest = messages
    if not rest:
        return [{**system, "role": "user"}]
    content = f"{content_text(system['content'])}\n{content_text(rest[0]['content'])}"
    return [{**rest[0], "content": content}, *rest[1:]]


def _in_words(calls: Sequence[Mapping[str, Any]], tools: ToolFormat) -> str:
    """Write calls as the model writes them, for a template that leaves them out."""
    functions = [call["function"] for call in calls]
    written = [
        {
            tools.name_key: function.get("name"),
            tools.arguments_key: _as_object(function.get("arguments")),
        }
        for function in functions
    ]
    return "".join(tools.openers[0]) + json.dumps(written, ensure_ascii=False) + tools.end


def _with(call: Mapping[str, Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": read(function.get("arguments"))}}


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        read = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        message = f"Failed to parse tool call arguments as JSON: {error}"
        raise InvalidRequest(message, param="messages") from error
    return {} if read is None else read


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})
