"""Formats of tool calls whose arguments are JSON.

The markers are llama.cpp's (common/chat.cpp, common/parsers/). `NAME` in an opener stands for the
name of a tool, `ANY` for an identifier.
"""

from worker.output.formats.tool_format import ANY, KIND, NAME, ToolFormat


def _deepseek(name: str) -> str:
    """Write one of DeepSeek's tokens: between fullwidth bars, with lower blocks for spaces."""
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"


_CALLS_BEGIN, _CALLS_END = _deepseek("tool calls begin"), _deepseek("tool calls end")
_CALL_BEGIN, _CALL_END = _deepseek("tool call begin"), _deepseek("tool call end")
_SEP = _deepseek("tool sep")

_START = "<|start|>assistant"
_SOLAR_OPENER = ("<|tool_call:begin|>", ANY, "<|tool_call:name|>", NAME, "<|tool_call:args|>")

JSON_CALLS: tuple[ToolFormat, ...] = (
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
        is_single=True,
        reasoning_key="thinking",
        thinks_or_says=True,
        dropped=(
            _START,
            "<|channel|>final<|message|>",
            "<|channel|>commentary<|channel|>final<|message|>",
            "<|channel|>commentary<|message|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
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
        name="deepseek-r1",
        marks=(_CALLS_BEGIN, "```json"),
        openers=(
            (
                *(_CALLS_BEGIN, _CALL_BEGIN, f"function{_SEP}"),
                *(NAME, "\n```json\n"),
            ),
            (_CALL_BEGIN, f"function{_SEP}", NAME, "\n```json\n"),
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
        openers=(("[TOOL_CALLS]", NAME, "[CALL_ID]", ANY, "[ARGS]"),),
        loose_openers=(("[TOOL_CALLS]", NAME, "[ARGS]"),),
        triggers=("[TOOL_CALLS]",),
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
        triggers=("Action:\n```json",),
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
"""The more special stand first."""
