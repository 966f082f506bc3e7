"""Formats of tool calls whose arguments are not JSON: in tags, in nested tags, or almost JSON.

The markers are llama.cpp's (common/chat.cpp, common/parsers/).
"""

from dataclasses import replace

from worker.output.formats.reasoning_marks import DSML
from worker.output.formats.tool_format import ANY, NAME, Nested, Notation, Tagged, ToolFormat

_START = "<|start|>assistant"
_M3 = "]<]minimax[>["
_HY3_OPENER = ("<tool_call:opensource>", NAME, "<tool_sep:opensource>\n")


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

TAGGED_CALLS: tuple[ToolFormat, ...] = (
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
        notation=Notation(
            quotes=('<|"|>',), separator=":", close="}", has_bare_keys=True, is_sorted=True
        ),
    ),
    _LFM2,
    replace(_LFM2, name="lfm2.5", marks=("List of tools: [",)),
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
)
"""The more special stand first."""
