"""Detects how a template writes reasoning, by rendering it with and without.

The same comparisons as llama.cpp's (common/chat-diff-analyzer.cpp), so that the same space around
reasoning belongs to its marks.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.errors import InvalidRequest
from worker.output.formats.reasoning_marks import ReasoningMarks, listed_reasoning_marks
from worker.prompt.chat.segments import difference, split_markers
from worker.prompt.chat.template import ChatTemplate

_USER = {"role": "user", "content": "U_USER_MSG Hello END_U"}
_ANSWER = {"role": "assistant", "content": "A_ASST_MSG I can help END_A"}
_REASONING = "REASON_PART I am thinking END_R"
_MARK = r"(?:<[^>]*>|\[[^\]]*\])"
_WRAPPED = re.compile(rf"({_MARK}\s*){_REASONING}(\s*{_MARK}\s*)")
_ENDED = re.compile(rf"{_REASONING}\s*({_MARK}\s*)")
_WRAPPED_NEAR = re.compile(rf"({_MARK}\s*){_REASONING}\s*({_MARK}\s*)")
_ANCHOR = 64

Marks = tuple[str, str]
"""Marks before and after reasoning; may be empty."""

_NOTHING: Marks = ("", "")


def find_reasoning_marks(template: ChatTemplate) -> ReasoningMarks | None:
    """Find how a template writes reasoning; None if it writes none."""
    listed = listed_reasoning_marks(template.source)
    if listed is not None:
        return listed
    begin, end = _patched(template.source, _analyzed(template))
    if not begin and not end:
        return None
    if not end.strip():
        return ReasoningMarks(skips_lead=True)
    return ReasoningMarks(
        open=begin.strip(),
        close=end.strip(),
        after_open=begin[len(begin.rstrip()) :],
        after_close=end[len(end.rstrip()) :],
        skips_lead=True,
        begin=begin,
        finish=end,
    )


def _patched(source: str, found: Marks) -> Marks:
    """Correct what rendering cannot show; the texts are llama.cpp's."""
    think = ("<think>", "</think>")
    is_old = "content.split('</think>')" in source and "reasoning_content" not in source
    if found == _NOTHING and is_old and "<SPECIAL_12>" not in source:
        return think
    if "Write your reasoning between <think></think> and write your response between" in source:
        return think
    if all(mark in source for mark in ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>")):
        return ("<think>\n", "</think>") if "<TOOL_RESPONSE>" in source else found
    if "laguna_glm_thinking" in source:
        return found[0].strip(), found[1].strip()
    return found


def _analyzed(template: ChatTemplate) -> Marks:
    found = _enabled(template, _presence(template))
    return _beside_calls(template) or found


def _presence(template: ChatTemplate) -> Marks:
    """Compare an earlier answer with reasoning and without."""
    with_reasoning = _render(template, [_USER, {**_ANSWER, "reasoning_content": _REASONING}])
    without = _render(template, [_USER, _ANSWER])
    if with_reasoning is None or without is None or _REASONING not in with_reasoning:
        return _NOTHING
    return _around(with_reasoning, _WRAPPED)


def _around(text: str, wrapped: re.Pattern[str]) -> Marks:
    if match := wrapped.search(text):
        return match[1], match[2]
    match = _ENDED.search(text)
    return ("", match[1]) if match else _NOTHING


def _enabled(template: ChatTemplate, found: Marks) -> Marks:
    """Compare the generation prompts with reasoning turned off and on."""
    off = _render(template, [_USER], enable_thinking=False, begins=True)
    on = _render(template, [_USER], enable_thinking=True, begins=True)
    if off is None or on is None:
        return found
    begin, end = found
    left, right = difference(off, on)
    if not left.strip() and right:
        if right.strip() and on.endswith(right.strip()):
            begin = begin or right
    elif not right.strip() and left:
        if left.strip() and off.endswith(left.strip()) and not end:
            parts = [part for part in split_markers(off) if part.strip()]
            is_last = parts[-1:] == [left.strip()] and len(parts) > 1
            begin = parts[-2] if is_last and _is_mark(parts[-2]) else begin
            end = left
    elif left.strip() and right.strip():
        return _anchored(off, on, found)
    return begin, end


def _anchored(off: str, on: str, found: Marks) -> Marks:
    """Look for two marks that only one of two very different prompts has."""
    for base, extended in ((on, off), (off, on)):
        anchor = base[-_ANCHOR:]
        at = extended.rfind(anchor)
        extra = extended[at + len(anchor) :].strip() if at >= 0 else ""
        parts = [part for part in split_markers(extra) if part.strip()]
        if len(parts) == 2 and all(map(_is_mark, parts)):
            return found[0] or parts[0], found[1] or parts[1]
    return found


def _beside_calls(template: ChatTemplate) -> Marks | None:
    """Find marks that are written only where an answer calls tools."""
    thought = {"role": "assistant", "reasoning_content": _REASONING}
    plain = _render(template, [_USER, {**thought, "content": _ANSWER["content"]}], tools=_TOOLS)
    called = {**thought, "content": None, "tool_calls": [_CALL]}
    calling = _render(template, [_USER, called], tools=_TOOLS)
    if plain is None or calling is None or _REASONING in plain or _REASONING not in calling:
        return None
    return _around(calling, _WRAPPED_NEAR)


def _is_mark(part: str) -> bool:
    return part[0] in "<[" and part[-1] in ">]"


def _render(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    enable_thinking: bool = True,
    begins: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str | None:
    variables: dict[str, Any] = {"enable_thinking": enable_thinking}
    if tools:
        variables["tools"] = list(tools)
    try:
        return template.render(messages, variables, add_generation_prompt=begins)
    except InvalidRequest:
        return None


_ARGUMENTS = {"AA_ARG_FST_AA": "VVVV", "BB_ARG_SND_BB": "XXXX"}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "FFF_FIRST_FUN_F", "arguments": _ARGUMENTS},
}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Test function",
            "parameters": {
                "type": "object",
                "properties": {
                    argument: {"type": "string", "description": "Argument"}
                    for argument in _ARGUMENTS
                },
                "required": [],
            },
        },
    }
    for name in ("FFF_FIRST_FUN_F", "SSS_SECOND_FUN_S")
]
