"""Grammars of tool calls in a format of `worker.output.chat_parser`, with the tools' schemas."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.grammar.json_schema.builder import GrammarBuilder
from worker.grammar.json_schema.literals import until
from worker.grammar.nested import nested_arguments
from worker.grammar.notated import notated_arguments
from worker.grammar.rules import literal
from worker.grammar.tagged import tagged_arguments
from worker.output.formats.choice import GENERIC
from worker.output.formats.reasoning_marks import ReasoningMarks
from worker.output.formats.tool_format import ANY, KIND, NAME, ToolFormat

Tool = Mapping[str, Any]
"""OpenAI's tool object."""

_PATTERNS = {
    ANY: "[0-9a-zA-Z]{1,10}",
    KIND: '(space "<|constrain|>"? [A-Za-z0-9_-]{1,16})?',
}
_EMPTY = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolShape:
    """Form of the answer around the calls."""

    tools: ToolFormat
    is_parallel: bool
    opener_prefix: str = ""
    """Beginning of the first call's opener that the prompt contains."""
    reasoning_marks: ReasoningMarks | None = None
    reasoning_open: bool = False
    reasoning_over: bool = False
    """Whether the prompt contains the reasoning's end."""
    is_required: bool = True
    """Whether a call is required; otherwise an answer as text is allowed too."""
    answer: str = ""
    """Mark at the beginning of an answer that is not a call."""
    fence: bool | None = False
    """JSON must stand in a fence, must not, or (None) as the model likes."""
    newlines: frozenset[str] = frozenset()
    """Markers after which the template writes a line break."""


def call_grammar(tools: Sequence[Tool], shape: ToolShape) -> str:
    """Return the grammar of an answer that calls tools: free reasoning, then calls."""
    builder = GrammarBuilder(param="tools")
    reasoning = _reasoning(builder, shape, "space")
    after = f" {literal(shape.tools.after)}?" if shape.tools.after else ""
    builder.add_rule("root", f"{reasoning}{_calls(builder, tools, shape)} space{after}")
    return builder.text()


def answer_grammar(schema: Mapping[str, Any], shape: ToolShape) -> str:
    """Return the grammar of an answer in JSON that may come after reasoning."""
    builder = GrammarBuilder(param="response_format")
    answer = builder.add_schema(schema, "response-format")
    fenced = f'"```json" space {answer} space "```"'
    mark = f"{literal(shape.answer)} " if shape.answer else ""
    if shape.fence is None:
        # The spaces are those of llama-server (chat-auto-parser-generator.cpp).
        before = _reasoning(builder, shape, _optional_space(shape)) or (
            "" if shape.reasoning_over else "space "
        )
        way = f"space ({fenced} | space {answer} space)"
    else:
        before = _reasoning(builder, shape, "space", is_closed=bool(shape.fence))
        way = f"space {fenced}" if shape.fence else f"{answer} space"
    builder.add_rule("root", f"{before}{mark}{way}")
    return builder.text()


def _optional_space(shape: ToolShape) -> str:
    """Write the white space that the template writes after reasoning."""
    marks = shape.reasoning_marks
    return " ".join(f"{literal(char)}?" for char in marks.after_close or "") if marks else ""


def _reasoning(
    builder: GrammarBuilder, shape: ToolShape, after: str, *, is_closed: bool = False
) -> str:
    """Write the reasoning before a call or an answer; `after` is the space behind its end.

    `is_closed`: nothing but its own mark may end it.
    """
    reasoning = shape.reasoning_marks
    if reasoning is None:
        return ""
    close = literal(reasoning.close)
    # A call may stand where the reasoning should have ended first.
    ends = () if is_closed else reasoning.ends
    end = f"({close} {after})?" if ends else f"{close} {after}".rstrip()
    text = f"{until(builder, reasoning.close, *ends)} {end}"
    if shape.reasoning_open:
        return f"{text} "
    return f"space ({literal(reasoning.open)} {text} {literal(reasoning.again)})? "


def _calls(builder: GrammarBuilder, tools: Sequence[Tool], shape: ToolShape) -> str:
    if shape.tools is GENERIC:
        return _generic(builder, tools, shape)
    if any(NAME in parts for parts in shape.tools.openers):
        return _named(builder, tools, shape)
    call = _choice([_object(builder, tool, shape.tools) for tool in tools])
    begin = " space ".join(
        literal(part + "\n" if part in shape.newlines else part) for part in shape.tools.openers[0]
    )
    close = "".join(f" space {literal(text)}" for text in shape.tools.closers)
    end = f" space {literal(shape.tools.end)}" if shape.tools.end else ""
    if shape.tools.is_array:
        more = f' (space "," space {call})*' if shape.is_parallel else ""
        return f'{begin} space "[" space {call}{more} space "]"{end}'
    if shape.tools.is_sequence:
        return f"{begin} space {call}{_more(call, shape)}{end}"
    if shape.tools.is_bare:
        return f"space {call}"
    call_rule = builder.add_rule("tool-call", f"{begin} space {call}{close}")
    return f"{call_rule} (space {call_rule})*" if shape.is_parallel else call_rule


def _named(builder: GrammarBuilder, tools: Sequence[Tool], shape: ToolShape) -> str:
    """Calls whose openers name the tool; the first opener may begin a section."""
    openers = shape.tools.openers
    tails = {tool["function"]["name"]: _tail(builder, tool, shape.tools) for tool in tools}
    first = [
        _opened(name, tail, opener, shape.opener_prefix)
        for opener in (openers[0], *shape.tools.loose_openers)
        for name, tail in tails.items()
    ]
    call_rule = builder.add_rule("tool-call", _choice(first))
    end = f" space {literal(shape.tools.end)}" if shape.tools.end else ""
    later = [_later(name, tail, shape.tools) for name, tail in tails.items()]
    if shape.opener_prefix and not shape.is_required:
        words = shape.tools.dropped[0].removeprefix(shape.opener_prefix)
        text = f"{literal(words)} {until(builder, openers[-1][0])}"
        more = builder.add_rule("next-call", _choice(later))
        # Only space may stand before another call; words before a call end where it begins.
        return f"({text} ({more})? | {call_rule}){_more(more, shape)}"
    if not shape.is_parallel:
        return f"{call_rule}{end}"
    return f"{call_rule} (space {builder.add_rule('next-call', _choice(later))})*{end}"


def _later(name: str, tail: str, tools: ToolFormat) -> str:
    """Write a call that stands directly after another."""
    if not tools.later:
        return _opened(name, tail, tools.openers[-1], "")
    return f"{literal(tools.later[0])} space {_opened(name, tail, tools.later[1:], '')}"


def _more(call: str, shape: ToolShape) -> str:
    return f" (space {call})*" if shape.is_parallel else ""


def _tail(builder: GrammarBuilder, tool: Tool, tools: ToolFormat) -> str:
    """Write what follows the name of a tool: arguments and closers."""
    close = "".join(f" space {literal(text)}" for text in tools.closers)
    function = tool["function"]
    if tools.nested is not None:
        text = nested_arguments(builder, function, tools.nested)
    elif tools.notation is not None:
        text = notated_arguments(builder, function, tools.notation)
    elif tools.tagged is not None:
        text = tagged_arguments(builder, function, tools.tagged)
    else:
        return _arguments(builder, tool) + close
    return builder.add_rule(f"tool-{function['name']}-tail", text + close)


def _opened(name: str, tail: str, parts: Sequence[str], prefix: str) -> str:
    written = []
    for i, part in enumerate(parts):
        if part in _PATTERNS:
            written.append(_PATTERNS[part])
        else:
            text = name if part == NAME else part
            written.append(literal(text.removeprefix(prefix) if i == 0 else text))
    return f"{' '.join(written)} {tail}"


def _object(builder: GrammarBuilder, tool: Tool, tools: ToolFormat) -> str:
    """A call as a JSON object, with llama.cpp's spaces."""
    name = tool["function"]["name"]
    if tools.is_keyed:
        return builder.add_rule(
            f"tool-{name}", f'"{{" space {_key(name)} {_arguments(builder, tool)} space "}}"'
        )
    fields = [
        f"{_key(tools.name_key)} {literal(json.dumps(name))}",
        f"{_key(tools.arguments_key)} {_arguments(builder, tool)}",
    ]
    if tools.has_id:
        fields.append(f'{_key("id")} "\\"" [a-zA-Z0-9]{{{tools.id_length}}} "\\""')
    body = ' space "," space '.join(fields)
    if tools.first_id_key:
        call_id = f'{_key(tools.first_id_key)} "\\"" [a-zA-Z0-9]{{1,32}} "\\""'
        body = f'({call_id} space "," space)? {body}'
    return builder.add_rule(f"tool-{name}", f'"{{" space {body} space "}}"')


def _key(key: str) -> str:
    return f'{literal(json.dumps(key))} space ":" space'


def _arguments(builder: GrammarBuilder, tool: Tool) -> str:
    function = tool["function"]
    return builder.add_schema(function.get("parameters") or _EMPTY, f"tool-{function['name']}-args")


def _choice(alternatives: Sequence[str]) -> str:
    return f"({' | '.join(alternatives)})"


def _generic(builder: GrammarBuilder, tools: Sequence[Tool], shape: ToolShape) -> str:
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
