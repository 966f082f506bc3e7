"""Ways in which models write reasoning: marks, and the white space around them.

llama-server keeps the space inside reasoning, except the space that its parsers take as part of a
mark. For most models that is the space that the template writes beside the mark
(`worker.prompt.chat.reasoning_detection`). Models with a parser of their own in llama.cpp
(common/parsers/) have a row here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

WhiteSpace = str | None
"""White space that belongs to the mark before it: each of these characters, or None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningMarks:
    """Marks around a model's reasoning."""

    open: str = ""
    """Mark that begins reasoning; empty if it begins at once."""
    loose_opens: tuple[str, ...] = ()
    """Alternative marks that some models write."""
    close: str = ""
    """Mark that ends reasoning; empty if there is none, and only leading space is dropped."""
    after_open: WhiteSpace = ""
    after_close: WhiteSpace = ""
    skips_lead: bool = False
    """Whether white space before reasoning is dropped."""
    ends: tuple[str, ...] = ()
    """Texts that also end reasoning, but belong to the part that follows."""
    call_inside: bool = False
    """Whether the grammar applies to a call inside reasoning: its first mark ends the reasoning."""
    may_only_end: bool = False
    """Whether an answer without reasoning may begin with the mark that ends it."""
    ends_if_empty: bool = False
    """Whether the closing mark alone begins an answer that has no reasoning."""
    is_anywhere: bool = False
    """Whether reasoning may occur several times, not only first; a lone `close` is dropped."""
    again: str = ""
    """How the template begins the part after reasoning, which is a message of its own."""
    begin: str = ""
    """How the template begins reasoning, where that is more than `open` and its space."""
    finish: str = ""
    """How the template ends reasoning."""
    answer: str = ""
    """Mark that begins an answer, where the grammar must contain it."""
    fence: bool | None = None
    """Whether a code fence around an answer in JSON is required; None: it is allowed."""
    forced: str = ""
    """Text with which the worker ends reasoning at its budget; empty for `close`."""

    @property
    def written(self) -> tuple[str, str]:
        """Return the marks as the template writes them."""
        begin = self.begin or self.open + (self.after_open or "")
        return begin, self.finish or self.close + (self.after_close or "")

    @property
    def last_words(self) -> tuple[str, ...]:
        """Return all texts that end reasoning; the worker writes the first one at the budget."""
        found = (self.forced, self.close, *(self.ends if self.call_inside else ()))
        return tuple(dict.fromkeys(text for text in found if text))

    @property
    def skips_space(self) -> bool:
        """Whether leading white space of an answer without reasoning is dropped."""
        return self.skips_lead or self.after_close is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningRow:
    """A row of the table: texts that the template must and must not contain."""

    marks: tuple[str, ...]
    absent: tuple[str, ...] = ()
    reasoning_marks: ReasoningMarks


def _think(
    *,
    after_open: WhiteSpace = "",
    after_close: WhiteSpace = "",
    ends: tuple[str, ...] = (),
    fence: bool = False,
) -> ReasoningMarks:
    return ReasoningMarks(
        open="<think>",
        close="</think>",
        after_open=after_open,
        after_close=after_close,
        ends=ends,
        fence=fence,
    )


DSML = "\uff5cDSML\uff5c"
"""DeepSeek's token in the tags of calls: letters between fullwidth bars."""


def _dsml(section: str) -> ReasoningMarks:
    """DeepSeek's marks; a section of calls with the line breaks before it ends reasoning, too."""
    begin = f"<{DSML}{section}>"
    return replace(_think(ends=(f"\n\n{begin}", begin), fence=True), call_inside=True)


_QWEN = ReasoningMarks(
    open="<think>",
    close="</think>",
    after_open=None,
    after_close=None,
    ends=("<tool_call>",),
    call_inside=True,
    begin="<think>\n",
    finish="\n</think>\n\n",
    forced="\n</think>",
    fence=False,
)
_QWEN_MARKS = ("<tool_call>", "<function=", "<parameter=")
ON_ONE_LINE = "'<tool_call><function=' ~ tool_call.name ~ '>'"
"""Qwen3-Coder's tags without line breaks, which llama.cpp, too, takes for another format."""
_COHERE = ("<|START_THINKING|>", "<|END_THINKING|>")

_ANALYSIS = "<|channel|>analysis<|message|>"

CHANNELS = ReasoningMarks(
    open=_ANALYSIS,
    loose_opens=(
        f"<|channel|>commentary{_ANALYSIS}",
        f"<|channel|>commentary to=assistant{_ANALYSIS}",
    ),
    close="<|end|>",
    is_anywhere=True,
    again="<|start|>assistant",
    answer="<|channel|>final<|message|>",
    fence=False,
    finish="<|end|><|start|>assistant<|channel|>final<|message|>",
)

REASONING_ROWS: Sequence[ReasoningRow] = (
    ReasoningRow(
        marks=("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"),
        absent=("[CALL_ID]",),
        reasoning_marks=ReasoningMarks(
            open="[THINK]", close="[/THINK]", after_close=None, fence=True
        ),
    ),
    ReasoningRow(marks=("<|channel|>",), reasoning_marks=CHANNELS),
    ReasoningRow(
        marks=("<|tool_call:begin|>", "<|begin|>assistant<|think|>"),
        reasoning_marks=ReasoningMarks(
            open="<|think|>",
            close="<|end|>",
            is_anywhere=True,
            again="<|begin|>assistant",
            answer="<|content|>",
            fence=False,
            finish="<|end|><|begin|>assistant<|content|>",
        ),
    ),
    ReasoningRow(
        marks=("<atem:function_calls>", "<|eom|>"),
        reasoning_marks=ReasoningMarks(
            open=" to=self<|message|>",
            close="<|eom|>",
            is_anywhere=True,
            again="<|start|>assistant",
            answer=" to=user<|message|>",
            finish="<|eom|><|start|>assistant to=user<|message|>",
        ),
    ),
    ReasoningRow(
        marks=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        reasoning_marks=_think(ends=("<|tool_calls_section_begin|>", "<|tool_call_begin|>")),
    ),
    ReasoningRow(
        marks=("<role>ASSISTANT</role>", "<arg_key>"),
        reasoning_marks=replace(_think(ends=("<tool_call>",)), call_inside=True),
    ),
    ReasoningRow(
        marks=("<|open|>", "<|close|>", "<|end_of_msg|>"),
        reasoning_marks=ReasoningMarks(
            open="<|open|>think<|sep|>",
            close="<|close|>think<|sep|>",
            finish="<|close|>think<|sep|><|open|>response<|sep|>",
            ends=("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
            call_inside=True,
        ),
    ),
    ReasoningRow(
        marks=("<|START_TEXT|>", "<|START_ACTION|>"),
        reasoning_marks=ReasoningMarks(
            open=_COHERE[0],
            close=_COHERE[1],
            ends=("<|START_TEXT|>", "<|START_ACTION|>"),
            answer="<|START_TEXT|>",
            finish=f"{_COHERE[1]}<|START_TEXT|>",
            fence=False,
        ),
    ),
    ReasoningRow(marks=("List of tools: [", "<think>"), reasoning_marks=_think()),
    ReasoningRow(
        marks=("<|role_sep|>", "<|message_sep|>"),
        absent=("<|function_call|>",),
        reasoning_marks=ReasoningMarks(),
    ),
    ReasoningRow(
        marks=("]<]minimax[>[", "<tool_call>", "<invoke name="),
        reasoning_marks=ReasoningMarks(
            open="<mm:think>",
            close="</mm:think>",
            after_open=None,
            may_only_end=True,
            fence=True,
        ),
    ),
    ReasoningRow(
        marks=("dsml_token", "DSML", "function_calls"), reasoning_marks=_dsml("function_calls")
    ),
    ReasoningRow(
        marks=("dsml_token", "DSML", "tool_calls"),
        reasoning_marks=replace(_dsml("tool_calls"), may_only_end=True, ends_if_empty=True),
    ),
    ReasoningRow(
        marks=("'<|tool_call>call:'",),
        reasoning_marks=ReasoningMarks(
            open="<|channel>thought",
            close="<channel|>",
            after_open=None,
            begin="<|channel>thought\n",
            is_anywhere=True,
            fence=True,
        ),
    ),
    ReasoningRow(
        marks=("Tool usage guidelines:", '<function name="', '<param name="'),
        reasoning_marks=replace(
            _think(after_open=None, after_close=None),
            begin="<think>\n",
            finish="\n</think>\n\n",
        ),
    ),
    ReasoningRow(marks=("<think>", *_QWEN_MARKS), absent=(ON_ONE_LINE,), reasoning_marks=_QWEN),
    ReasoningRow(
        marks=_QWEN_MARKS,
        absent=(ON_ONE_LINE,),
        reasoning_marks=ReasoningMarks(skips_lead=True, fence=False),
    ),
)
"""The first row that fits the template is taken; if none fits, renderings are compared."""


def listed_reasoning_marks(template: str) -> ReasoningMarks | None:
    """Find the row of a template, if it has one."""
    for row in REASONING_ROWS:
        is_here = all(mark in template for mark in row.marks)
        if is_here and not any(mark in template for mark in row.absent):
            return row.reasoning_marks
    return None
