"""How models write tool calls: one row for each format, chosen by the template's text.

The markers are llama.cpp's (common/chat.cpp, common/parsers/). `NAME` in an opener stands for the
name of a tool, `ANY` for an identifier.
"""

from dataclasses import replace

from worker.output.chat_parser.reasoning_marks import DSML, ON_ONE_LINE, ReasoningMarks
from worker.output.chat_parser.tool_format import (
    ANY,
    KIND,
    NAME,
    Nested,
    Notation,
    Tagged,
    ToolFormat,
)


def _deepseek(name: str) -> str:
    """Write one of DeepSeek's tokens: between fullwidth bars, with lower blocks for spaces."""
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"


_CALLS_BEGIN, _CALLS_END = _deepseek("tool calls begin"), _deepseek("tool calls end")
_CALL_BEGIN, _CALL_END = _deepseek("tool call begin"), _deepseek("tool call end")
_SEP = _deepseek("tool sep")

_START = "<|start|>assistant"
_M3 = "]<]minimax[>["
_SOLAR_OPENER = ("<|tool_call:begin|>", ANY, "<|tool_call:name|>", NAME, "<|tool_call:args|>")
_HY3_OPENER = ("<tool_call:opensource>", NAME, "<tool_sep:opensource>\n")

GENERIC = ToolFormat(
    name="generic",
    is_bare=True,
    calls=(("tool_call",), ("tool_calls", None)),
    content=("response",),
)
"""For templates without tools: the prompt explains the calls, a grammar enforces them."""


def _kimi(tag: str, name: str) -> str:
    """Write one of Kimi K3's tags without attributes."""
    return f"<|{tag}|>{name}<|sep|>"


_KIMI_CALL = ('<|open|>call tool="', NAME, '" index="', ANY, '"<|sep|>')

_FUNCTION_BLOCKS = Tagged(
    key_open="<parameter=",
    key_close=">",
    value_close="</parameter>",
    is_block=True,
    close="</function>",
)


def _dsml(name: str, section: str) -> ToolFormat:
    """DeepSeek's tags; the line breaks before a section of calls belong to it."""
    begin, invoke = f"<{DSML}{section}>", f'<{DSML}invoke name="'
    return ToolFormat(
        name=name,
        marks=("dsml_token", "DSML", section),
        openers=((f"{begin}\n", invoke, NAME, '">\n'), (invoke, NAME, '">\n')),
        loose_openers=((f"\n\n{begin}\n", invoke, NAME, '">\n'),),
        triggers=(begin,),
        end=f"</{DSML}{section}>",
        tagged=Tagged(
            key_open=f'<{DSML}parameter name="',
            key_close='" string="',
            kinds=('true">', 'false">'),
            value_close=f"</{DSML}parameter>",
            close=f"</{DSML}invoke>",
        ),
    )


_MUSE_CALL = (NAME, "<|message|>", "<atem:function_calls>\n", '<atem:invoke name="', NAME, '">\n')

_LFM2 = ToolFormat(
    name="lfm2",
    marks=("<|tool_list_start|>", "<|tool_list_end|>"),
    openers=(("<|tool_call_start|>", "[", NAME, "("),),
    later=(",", NAME, "("),
    end="]<|tool_call_end|>",
    reasoning_key="thinking",
    notation=Notation(
        quotes=('"', "'"),
        separator="=",
        close=")",
        has_escapes=True,
        words=(("True", "true"), ("False", "false"), ("None", "null")),
    ),
)

FORMATS: tuple[ToolFormat, ...] = (
    _dsml("deepseek-v3.2", "function_calls"),
    replace(_dsml("deepseek-v4", "tool_calls"), shows_schema=True),
    ToolFormat(
        name="qwen3.5",
        marks=("<tool_call>", "<function=", "<parameter=", "<think>"),
        openers=(("<tool_call>\n", "<function=", NAME, ">\n"),),
        closers=("</tool_call>",),
        tagged=_FUNCTION_BLOCKS,
    ),
    ToolFormat(
        name="qwen3-coder",
        marks=("<tool_call>", "<function=", "<parameter="),
        openers=(("<tool_call>\n", "<function=", NAME, ">\n"),),
        loose_openers=(("<function=", NAME, ">\n"),),
        closers=("</tool_call>",),
        tagged=_FUNCTION_BLOCKS,
    ),
    ToolFormat(
        name="seed-oss",
        marks=("<seed:tool_call>", "<function=", "<parameter="),
        openers=(("<seed:tool_call>\n", "<function=", NAME, ">\n"),),
        closers=("</seed:tool_call>",),
        tagged=replace(_FUNCTION_BLOCKS, is_block=False),
    ),
    ToolFormat(
        name="glm-4.5",
        marks=("<tool_call>", "<arg_key>", "<arg_value>"),
        openers=(("<tool_call>", NAME),),
        tagged=Tagged(
            key_open="<arg_key>",
            key_close="</arg_key>",
            value_open="<arg_value>",
            value_close="</arg_value>",
            close="</tool_call>",
        ),
    ),
    ToolFormat(
        name="hy3",
        marks=("':opensource'", "<tool_sep{}>", "<arg_key{}>", "<arg_value{}>"),
        openers=(("<tool_calls:opensource>\n", *_HY3_OPENER), _HY3_OPENER),
        end="</tool_calls:opensource>",
        tagged=Tagged(
            key_open="<arg_key:opensource>",
            key_close="</arg_key:opensource>",
            value_open="<arg_value:opensource>",
            value_close="</arg_value:opensource>",
            close="</tool_call:opensource>",
        ),
    ),
    ToolFormat(
        name="minimax-m3",
        marks=(_M3, "<tool_call>", "<invoke name="),
        openers=(
            (f"{_M3}<tool_call>\n", f'{_M3}<invoke name="', NAME, '">'),
            (f'{_M3}<invoke name="', NAME, '">'),
        ),
        end=f"{_M3}</tool_call>",
        nested=Nested(mark=_M3, close=f"{_M3}</invoke>"),
    ),
    ToolFormat(
        name="minimax-m2",
        marks=("<minimax:tool_call>", "<invoke name=", "<parameter name="),
        openers=(
            ("<minimax:tool_call>\n", '<invoke name="', NAME, '">\n'),
            ('<invoke name="', NAME, '">\n'),
        ),
        end="</minimax:tool_call>",
        tagged=Tagged(
            key_open='<parameter name="',
            key_close='">',
            value_close="</parameter>",
            close="</invoke>",
        ),
    ),
    ToolFormat(
        name="minicpm5",
        marks=("Tool usage guidelines:", '<function name="', '<param name="'),
        openers=(('<function name="', NAME, '">'),),
        tagged=Tagged(
            key_open='<param name="',
            key_close='">',
            value_close="</param>",
            quotes=("<![CDATA[", "]]>"),
            close="</function>",
        ),
    ),
    ToolFormat(
        name="gemma-4",
        marks=("'<|tool_call>call:'",),
        openers=(("<|tool_call>call:", NAME, "{"),),
        triggers=("<|tool_call>",),
        closers=("<tool_call|>",),
        unasked=("<turn|>\n", "<|turn>model\n"),
        notation=Notation(quotes=('<|"|>',), separator=":", close="}", has_bare_keys=True),
    ),
    _LFM2,
    replace(_LFM2, name="lfm2.5", marks=("List of tools: [",)),
    ToolFormat(
        name="gpt-oss",
        marks=("<|channel|>", "<|message|>"),
        openers=(
            ("<|channel|>commentary to=functions.", NAME, KIND, "<|message|>"),
            ("<|channel|>analysis to=functions.", NAME, KIND, "<|message|>"),
            (f"{_START} to=functions.", NAME, "<|channel|>commentary", KIND, "<|message|>"),
            (f"{_START} to=functions.", NAME, "<|channel|>analysis", KIND, "<|message|>"),
        ),
        loose_openers=(
            (" to=functions.", NAME, "<|channel|>commentary", KIND, "<|message|>"),
            (" to=functions.", NAME, "<|channel|>analysis", KIND, "<|message|>"),
        ),
        triggers=("<|channel|>commentary to=functions.", " to=functions."),
        closers=("<|call|>", "<|end|>"),
        dropped=(
            _START,
            "<|channel|>final<|message|>",
            "<|channel|>commentary<|channel|>final<|message|>",
            "<|channel|>commentary<|message|>",
            "<|end|>",
            "<|return|>",
        ),
    ),
    ToolFormat(
        name="muse-glimmer",
        marks=("<atem:function_calls>", "<|eom|>"),
        openers=((" to=", *_MUSE_CALL),),
        later=("<|eom|>", f"{_START} to=", *_MUSE_CALL),
        triggers=(f" to={NAME}<|message|>",),
        closers=("</atem:function_calls>",),
        dropped=(_START, " to=user<|message|>", "<|message|>", "<|eom|>", "<|eot|>"),
        tagged=Tagged(
            key_open='<atem:parameter name="',
            key_close='">',
            value_close="</atem:parameter>",
            close="</atem:invoke>",
        ),
    ),
    ToolFormat(
        name="functionary-v3.2",
        marks=(">>>all", ">>>${recipient}"),
        openers=((">>>", NAME, "\n"),),
        dropped=(">>>all\n",),
    ),
    ToolFormat(
        name="functionary-v3.1",
        marks=("<function=", "</function>", "<|python_tag|>"),
        openers=(("<function=", NAME, ">"),),
        closers=("</function>",),
    ),
    ToolFormat(
        name="kimi-k2",
        marks=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        openers=(
            (
                *("<|tool_calls_section_begin|>", "<|tool_call_begin|>functions.", NAME),
                *(":", ANY, "<|tool_call_argument_begin|>"),
            ),
            ("<|tool_call_begin|>functions.", NAME, ":", ANY, "<|tool_call_argument_begin|>"),
        ),
        closers=("<|tool_call_end|>",),
        end="<|tool_calls_section_end|>",
    ),
    ToolFormat(
        name="solar-open",
        marks=("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"),
        openers=(("<|tool_calls|>", *_SOLAR_OPENER), _SOLAR_OPENER),
        closers=("<|tool_call:end|>",),
        dropped=("<|begin|>assistant", "<|content|>", "<|end|>", "<|calls|>"),
        id_length=10,
    ),
    ToolFormat(
        name="kimi-k3",
        marks=("<|open|>", "<|close|>", "<|end_of_msg|>"),
        openers=((_kimi("open", "tools"), *_KIMI_CALL), _KIMI_CALL),
        end=_kimi("close", "tools"),
        after=_kimi("close", "message"),
        dropped=(
            _kimi("open", "response"),
            _kimi("close", "response"),
            _kimi("close", "message"),
            "<|end_of_msg|>",
        ),
        tagged=Tagged(
            key_open='<|open|>argument key="',
            key_close='" type="',
            value_open='"<|sep|>',
            has_type=True,
            value_close=_kimi("close", "argument"),
            close=_kimi("close", "call"),
        ),
    ),
    ToolFormat(
        name="deepseek-r1",
        marks=(_CALLS_BEGIN, "```json"),
        openers=(
            (
                *(_CALLS_BEGIN, _CALL_BEGIN, f"function{_SEP}"),
                *(NAME, "```json\n"),
            ),
            (_CALL_BEGIN, f"function{_SEP}", NAME, "```json\n"),
        ),
        closers=("```", _CALL_END),
        end=_CALLS_END,
    ),
    ToolFormat(
        name="deepseek-v3.1",
        marks=(_CALLS_BEGIN, _SEP),
        openers=(
            (_CALLS_BEGIN, _CALL_BEGIN, NAME, _SEP),
            (_CALL_BEGIN, NAME, _SEP),
        ),
        closers=(_CALL_END,),
        end=_CALLS_END,
    ),
    ToolFormat(
        name="mistral-call-id",
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        openers=(
            ("[TOOL_CALLS]", NAME, "[CALL_ID]", ANY, "[ARGS]"),
            ("[TOOL_CALLS]", NAME, "[ARGS]"),
        ),
        id_length=9,
    ),
    ToolFormat(
        name="mistral-args",
        marks=("[TOOL_CALLS]", "[ARGS]"),
        openers=(("[TOOL_CALLS]", NAME, "[ARGS]"),),
        id_length=9,
    ),
    ToolFormat(
        name="mistral",
        marks=("[TOOL_CALLS]",),
        openers=(("[TOOL_CALLS]",),),
        is_array=True,
        has_id=True,
        id_length=9,
    ),
    ToolFormat(
        name="firefunction-v2",
        marks=(" functools[",),
        openers=(("functools",),),
        is_array=True,
    ),
    ToolFormat(
        name="command-r7b",
        marks=("<|START_ACTION|>", "tool_name"),
        openers=(("<|START_ACTION|>",),),
        end="<|END_ACTION|>",
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        is_array=True,
        first_id_key="tool_call_id",
        name_key="tool_name",
        arguments_key="parameters",
    ),
    ToolFormat(
        name="command-r-plus",
        marks=("Action:", "```json", "<|CHATBOT_TOKEN|>", "tool_name"),
        openers=(("Action:", "```json"),),
        end="```",
        is_array=True,
        name_key="tool_name",
        arguments_key="parameters",
    ),
    ToolFormat(
        name="nemotron-v2",
        marks=("<TOOLCALL>",),
        openers=(("<TOOLCALL>",),),
        end="</TOOLCALL>",
        is_array=True,
    ),
    ToolFormat(
        name="granite",
        marks=("<|tool_call|>",),
        openers=(("<|tool_call|>",),),
        is_array=True,
    ),
    ToolFormat(
        name="apriel",
        marks=("<tool_calls>[",),
        openers=(("<tool_calls>",),),
        end="</tool_calls>",
        is_array=True,
    ),
    ToolFormat(
        name="minimax-m1",
        marks=("<beginning_of_sentence>", "<tool_calls>"),
        openers=(("<tool_calls>",),),
        end="</tool_calls>",
        is_sequence=True,
    ),
    ToolFormat(
        name="apertus",
        marks=("<|tools_prefix|>", "<|tools_suffix|>"),
        openers=(("<|tools_prefix|>",),),
        end="<|tools_suffix|>",
        is_array=True,
        is_keyed=True,
    ),
    ToolFormat(
        name="gigachat-3.1",
        marks=("<|role_sep|>", "<|message_sep|>", "<|function_call|>"),
        openers=(("<|function_call|>",),),
        is_single=True,
    ),
    ToolFormat(
        name="gigachat-3",
        marks=("<|role_sep|>", "<|message_sep|>"),
        openers=(("<|message_sep|>\n\nfunction call<|role_sep|>\n",),),
        is_single=True,
    ),
    ToolFormat(
        name="hermes",
        marks=("<tool_call>",),
        openers=(("<tool_call>",),),
        closers=("</tool_call>",),
    ),
    ToolFormat(
        name="llama-3",
        marks=("<|start_header_id|>ipython<|end_header_id|>", '"parameters"'),
        openers=(("<|python_tag|>",),),
        closers=(";",),
        is_bare=True,
        has_words_first=True,
        arguments_key="parameters",
    ),
)
"""The first row whose marks are all in the template is taken: the more special stand first."""

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
