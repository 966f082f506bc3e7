"""Grammars of tool calls: in a format of `worker.output.chat`, with the tools' own schemas."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.grammar.builder import GrammarBuilder
from worker.grammar.literals import literal, until
from worker.grammar.tagged import tagged_arguments
from worker.output.chat.formats import GENERIC, Thoughts
from worker.output.chat.tool_format import ANY, NAME, ToolFormat

Tool = Mapping[str, Any]
"""OpenAI's tool object."""

_EMPTY = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the answer around the calls looks."""

    tools: ToolFormat
    is_parallel: bool
    begun: str = ""
    """What of the first call's opener the prompt already holds."""
    thoughts: Thoughts | None = None
    thoughts_begun: bool = False
    is_required: bool = True
    """Only for the generic format: otherwise an answer in words will do."""
    newlines: frozenset[str] = frozenset()
    """Markers after which the template writes a line break."""


def call_grammar(tools: Sequence[Tool], shape: Shape) -> str:
    """Return the grammar of an answer that calls tools: thoughts as the model likes, then calls."""
    builder = GrammarBuilder(param="tools")
    thoughts = _thoughts(builder, shape)
    builder.add_rule("root", f"{thoughts}{_calls(builder, tools, shape)} space")
    return builder.text()


def answer_grammar(schema: Mapping[str, Any], shape: Shape, *, param: str) -> str:
    """Return the grammar of an answer in JSON that may come after thoughts."""
    builder = GrammarBuilder(param=param)
    thoughts = _thoughts(builder, shape)
    builder.add_rule("root", f"{thoughts}{builder.add_schema(schema, 'response-format')} space")
    return builder.text()


def _thoughts(builder: GrammarBuilder, shape: Shape) -> str:
    thoughts = shape.thoughts
    if thoughts is None:
        return ""
    text = f"{until(builder, thoughts.close)} {literal(thoughts.close)} space"
    if shape.thoughts_begun:
        return f"{text} "
    after = "<|start|>assistant" if thoughts.is_anywhere else ""
    return f"space ({literal(thoughts.open)} {text} {literal(after)})? "


def _calls(builder: GrammarBuilder, tools: Sequence[Tool], shape: Shape) -> str:
    if shape.tools is GENERIC:
        return _generic(builder, tools, shape)
    if any(NAME in parts for parts in shape.tools.openers):
        return _named(builder, tools, shape)
    call = _choice([_object(builder, tool, shape.tools) for tool in tools])
    begin = shape.tools.openers[0][0]
    begin = literal(begin + "\n" if begin in shape.newlines else begin)
    close = "".join(f" space {literal(text)}" for text in shape.tools.closers)
    end = f" space {literal(shape.tools.end)}" if shape.tools.end else ""
    if shape.tools.is_array:
        more = f' (space "," space {call})*' if shape.is_parallel else ""
        return f'{begin} space "[" space {call}{more} space "]"{end}'
    if shape.tools.is_bare:
        return f"space {call}"
    one = builder.add_rule("tool-call", f"{begin} space {call}{close}")
    return f"{one} (space {one})*" if shape.is_parallel else one


def _named(builder: GrammarBuilder, tools: Sequence[Tool], shape: Shape) -> str:
    """Calls whose openers name the tool; the first opener may begin a section."""
    openers = shape.tools.openers
    tails = {tool["function"]["name"]: _tail(builder, tool, shape.tools) for tool in tools}
    first = [
        _opened(name, tail, opener, shape.begun)
        for opener in (openers[0], *shape.tools.loose_openers)
        for name, tail in tails.items()
    ]
    one = builder.add_rule("tool-call", _choice(first))
    end = f" space {literal(shape.tools.end)}" if shape.tools.end else ""
    if not shape.is_parallel:
        return f"{one}{end}"
    later = [_opened(name, tail, openers[-1], "") for name, tail in tails.items()]
    return f"{one} (space {builder.add_rule('next-call', _choice(later))})*{end}"


def _tail(builder: GrammarBuilder, tool: Tool, tools: ToolFormat) -> str:
    """Write what follows the name of a tool: arguments and closers."""
    close = "".join(f" space {literal(text)}" for text in tools.closers)
    if tools.tagged is None:
        return _arguments(builder, tool) + close
    name = f"tool-{tool['function']['name']}-tail"
    text = tagged_arguments(builder, tool["function"], tools.tagged)
    return builder.add_rule(name, text + close)


def _opened(name: str, tail: str, parts: Sequence[str], begun: str) -> str:
    written = []
    for i, part in enumerate(parts):
        if part == ANY:
            written.append("[0-9a-zA-Z]{1,9}")
        else:
            text = name if part == NAME else part
            written.append(literal(text.removeprefix(begun) if i == 0 else text))
    return f"{' '.join(written)} {tail}"


def _object(builder: GrammarBuilder, tool: Tool, tools: ToolFormat) -> str:
    """A call as a JSON object, with llama.cpp's spaces."""
    name = tool["function"]["name"]
    fields = [
        f"{_key(tools.name_key)} {literal(json.dumps(name))}",
        f"{_key(tools.arguments_key)} {_arguments(builder, tool)}",
    ]
    if tools.has_id:
        fields.append(f'{_key("id")} "\\"" [a-zA-Z0-9]{{{tools.id_length}}} "\\""')
    body = ' space "," space '.join(fields)
    return builder.add_rule(f"tool-{name}", f'"{{" space {body} space "}}"')


def _key(key: str) -> str:
    return f'{literal(json.dumps(key))} space ":" space'


def _arguments(builder: GrammarBuilder, tool: Tool) -> str:
    function = tool["function"]
    return builder.add_schema(function.get("parameters") or _EMPTY, f"tool-{function['name']}-args")


def _choice(alternatives: Sequence[str]) -> str:
    return f"({' | '.join(alternatives)})"


def _generic(builder: GrammarBuilder, tools: Sequence[Tool], shape: Shape) -> str:
    call = _choice([_object(builder, tool, shape.tools) for tool in tools])
    if shape.is_parallel:
        value = f'{_key("tool_calls")} "[" space {call} (space "," space {call})* space "]"'
    else:
        value = f"{_key('tool_call')} {call}"
    choices = [value]
    if not shape.is_required:
        text = builder.add_schema({"type": "string"}, "response-text")
        choices.append(f"{_key('response')} {text}")
    return f'"{{" space {_choice(choices)} space "}}"'
