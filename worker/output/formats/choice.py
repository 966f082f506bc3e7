"""Chooses how a model writes tool calls, by the texts in its chat template."""

from worker.output.formats.json_calls import JSON_CALLS
from worker.output.formats.reasoning_marks import ON_ONE_LINE, ReasoningMarks
from worker.output.formats.tagged_calls import TAGGED_CALLS
from worker.output.formats.tool_format import ANY, KIND, NAME, ToolFormat

GENERIC = ToolFormat(
    name="generic",
    is_bare=True,
    calls=(("tool_call",), ("tool_calls", None)),
    content=("response",),
)
"""For templates without tools: the prompt explains the calls, a grammar enforces them."""
FORMATS = TAGGED_CALLS + JSON_CALLS
"""The first row whose marks are all in the template is taken."""

_TAGGED = (
    *("<parameter=", "<arg_key>", "<param name=", "<invoke name=", "<parameter name="),
    *("<|open|>", "<atem:function_calls>"),
)
"""Arguments that are not JSON: where no row knows them, calls are asked for in the generic way."""


def choose_format(template: str) -> ToolFormat:
    """Find the format that a chat template teaches."""
    if "tools" not in template or ON_ONE_LINE in template:
        return GENERIC
    is_tagged = any(mark in template for mark in _TAGGED)
    for row in FORMATS:
        fits = bool(row.tagged or row.nested) or not is_tagged
        if fits and all(mark in template for mark in row.marks):
            return row
    return GENERIC


def markers(tools: ToolFormat, reasoning_marks: ReasoningMarks | None) -> tuple[str, ...]:
    """List every literal that a parser looks for."""
    openers = (*tools.openers, *tools.loose_openers, tools.later)
    parts = [part for opener in openers for part in opener if part not in (NAME, ANY, KIND)]
    if tools.nested:
        parts += [tools.nested.mark, tools.nested.close]
    if row := tools.tagged:
        parts += [row.key_open, row.key_close, row.value_open, row.value_close, row.close]
    tags = (
        (reasoning_marks.open, reasoning_marks.close, *reasoning_marks.ends)
        if reasoning_marks
        else ()
    )
    return (*parts, *tools.closers, tools.end, *tools.dropped, *tags)
