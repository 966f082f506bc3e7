"""Answers of chats as models write them, and what they come to; most are llama.cpp's own tests."""

from dataclasses import replace
from typing import NamedTuple

from worker.output.chat_parser.parser import ExpectedParts
from worker.output.formats.choice import FORMATS, GENERIC
from worker.output.formats.reasoning_marks import CHANNELS, REASONING_ROWS, ReasoningMarks

BY_NAME = {row.name: row for row in (*FORMATS, GENERIC)}
NAMES = frozenset({"special_function", "special_function_with_opt", "python"})
THINK = ReasoningMarks(
    open="<think>", close="</think>", after_open="\n", after_close="\n\n", skips_lead=True
)
"""As Qwen3 writes them, and what most templates come to when they are rendered."""
KIMI = next(
    row.reasoning_marks
    for row in REASONING_ROWS
    if "<|tool_call_begin|>" in row.reasoning_marks.ends
)
QWEN_35 = next(row.reasoning_marks for row in REASONING_ROWS if row.reasoning_marks.forced)


class Answer(NamedTuple):
    """What an answer came to."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]


def expect(tools: str = "", *, thinks: bool = False, answer_prefix: str = "") -> ExpectedParts:
    """What the prompt of a format lets one expect."""
    reasoning = (CHANNELS if tools == "gpt-oss" else THINK) if thinks else None
    row = BY_NAME[tools] if tools else None
    dropped = row.dropped if row else ()
    return ExpectedParts(
        tools=row,
        names=NAMES,
        reasoning_marks=reasoning,
        answer_prefix=answer_prefix,
        dropped=dropped,
    )


HELLO = "Hello, world!\nWhat's up?"
ONE = '{"arg1": 1}'
CALL = (("special_function", ONE),)
CALLS = (("special_function", ONE), ("special_function_with_opt", '{"arg1": 1, "arg2": 2}'))
DEEPSEEK = (
    "<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>"
    'special_function\n```json\n{"arg1": 1}```<\uff5ctool▁call▁end\uff5c>'
    "<\uff5ctool▁calls▁end\uff5c>"
)
HERMES = '<tool_call>\n{"name": "special_function", "arguments": {"arg1": 1}}\n</tool_call>'
OTHER = (
    '{"name": "special_function_with_opt", "arguments": {"arg1": 1, "arg2": 2}, "id": "000000002"}'
)
CHANNEL_CALL = (
    "<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant<|channel|>commentary"
    ' to=functions.special_function <|constrain|>json<|message|>{"arg1": 1}<|call|>'
)

CASES: list[tuple[str, ExpectedParts, str, Answer]] = [
    ("words", expect("hermes"), HELLO, Answer(HELLO, "", ())),
    ("hermes", expect("hermes"), HERMES, Answer("", "", CALL)),
    ("words, then hermes", expect("hermes"), HELLO + HERMES, Answer(HELLO, "", CALL)),
    (
        "space before a call",
        expect("hermes"),
        f"{HELLO}\n\n{HERMES}\n",
        Answer(f"{HELLO}\n\n", "", CALL),
    ),
    (
        "two calls",
        expect("hermes"),
        f"{HERMES}\n<tool_call>{OTHER}</tool_call>",
        Answer("", "", CALLS),
    ),
    ("words after", expect("hermes"), f"{HERMES} Done.", Answer(" Done.", "", CALL)),
    (
        "OpenAI's wrapper",
        expect("hermes"),
        '<tool_call>{"type": "function", "function": {"name": "python", "arguments": {}}}',
        Answer("", "", (("python", "{}"),)),
    ),
    (
        "arguments first",
        expect("hermes"),
        '<tool_call>{"arguments": {"a": [1, {"b": null}]}, "name": "python"}</tool_call>',
        Answer("", "", (("python", '{"a": [1, {"b": null}]}'),)),
    ),
    (
        "no arguments",
        expect("hermes"),
        '<tool_call>{"name": "python"}</tool_call>',
        Answer("", "", (("python", "{}"),)),
    ),
    (
        "arguments as text",
        expect("hermes"),
        '<tool_call>{"name": "python", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}</tool_call>',
        Answer("", "", (("python", '{"a": "é"}'),)),
    ),
    (
        "a raw line break",
        expect("hermes"),
        '<tool_call>{"name": "python", "arguments": {"code": "a\nb"}}</tool_call>',
        Answer("", "", (("python", '{"code": "a\\nb"}'),)),
    ),
    (
        "mistral",
        expect("mistral"),
        '[TOOL_CALLS][{"name": "special_function", "arguments": {"arg1": 1}, "id": "123456789"}]',
        Answer("", "", CALL),
    ),
    (
        "mistral, two",
        expect("mistral"),
        f'[TOOL_CALLS][{{"name": "special_function", "arguments": {ONE}}}, {OTHER}]',
        Answer("", "", CALLS),
    ),
    (
        "mistral with ids",
        expect("mistral-call-id"),
        '[TOOL_CALLS]special_function[CALL_ID]000000001[ARGS]{"arg1": 1}'
        "[TOOL_CALLS]special_function_with_opt[CALL_ID]000000002[ARGS]"
        '{"arg1": 1, "arg2": 2}',
        Answer("", "", CALLS),
    ),
    (
        "devstral",
        expect("mistral-args"),
        HELLO + '[TOOL_CALLS]special_function[ARGS]{"arg1": 1}',
        Answer(HELLO, "", CALL),
    ),
    (
        "functionary 3.1",
        expect("functionary-v3.1"),
        '<function=special_function>{"arg1": 1}</function>',
        Answer("", "", CALL),
    ),
    (
        "functionary 3.2",
        expect("functionary-v3.2", answer_prefix=">>>"),
        'special_function\n{"arg1": 1}',
        Answer("", "", CALL),
    ),
    (
        "functionary 3.2, words",
        expect("functionary-v3.2", answer_prefix=">>>"),
        "all\n" + HELLO,
        Answer(HELLO, "", ()),
    ),
    (
        "functionary 3.2, both",
        expect("functionary-v3.2", answer_prefix=">>>"),
        f'all\n{HELLO}\n>>>special_function\n{ONE}\n>>>python\n{{"code": "1"}}',
        Answer(f"{HELLO}\n", "", (*CALL, ("python", '{"code": "1"}'))),
    ),
    (
        "firefunction",
        replace(expect("firefunction-v2"), skips_space=True),
        ' functools[{"name": "special_function", "arguments": {"arg1": 1}}]',
        Answer("", "", CALL),
    ),
    (
        "llama 3",
        expect("llama-3"),
        '{"name": "special_function", "parameters": {"arg1": 1}}',
        Answer("", "", CALL),
    ),
    (
        "llama 3 with its tag",
        expect("llama-3"),
        '<|python_tag|>{"type": "function", "name": "special_function", "parameters": {"arg1": 1}}',
        Answer("", "", CALL),
    ),
    (
        "llama 3 after words",
        expect("llama-3"),
        f'So {{x}}: {{"name": "special_function", "parameters": {ONE}}}',
        Answer("So {x}: ", "", CALL),
    ),
    (
        "llama 3, two",
        expect("llama-3"),
        f'{{"name": "special_function", "parameters": {ONE}}}; {{"name": "python",'
        ' "parameters": {}}',
        Answer("", "", (*CALL, ("python", "{}"))),
    ),
    ("deepseek", expect("deepseek-r1"), DEEPSEEK, Answer("", "", CALL)),
    (
        "deepseek after opened reasoning",
        expect("deepseek-r1", thinks=True, answer_prefix="<think>"),
        "\nI'm\nthinking\n</think>\n\n" + DEEPSEEK,
        Answer("", "I'm\nthinking\n", CALL),
    ),
    (
        "nemotron",
        expect("nemotron-v2"),
        f'<TOOLCALL>[{{"name": "special_function", "arguments": {ONE}}}]</TOOLCALL>',
        Answer("", "", CALL),
    ),
    (
        "command r7b",
        expect("command-r7b"),
        '<|START_ACTION|>[\n  {"tool_call_id": "0", "tool_name": "special_function",'
        ' "parameters": {"arg1": 1}}\n]<|END_ACTION|>',
        Answer("", "", CALL),
    ),
    (
        "command r+",
        expect("command-r-plus"),
        'Hi. Action:\n```json\n[\n{"tool_name": "special_function", "parameters": {"arg1": 1}}]```',
        Answer("Hi. ", "", CALL),
    ),
    (
        "a call ends kimi's reasoning",
        replace(expect("kimi-k2"), reasoning_marks=KIMI, answer_prefix="<think>"),
        "Hm <|tool_call_begin|>functions.special_function:0"
        '<|tool_call_argument_begin|>{"arg1": 1}<|tool_call_end|>',
        Answer("", "Hm ", CALL),
    ),
    (
        "kimi k2",
        expect("kimi-k2"),
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.special_function:0"
        '<|tool_call_argument_begin|>{"arg1": 1}<|tool_call_end|><|tool_calls_section_end|>',
        Answer("", "", CALL),
    ),
    (
        "gpt-oss",
        expect("gpt-oss", thinks=True),
        CHANNEL_CALL,
        Answer("", "I'm\nthinking", CALL),
    ),
    (
        "gpt-oss, the recipient first",
        expect("gpt-oss", thinks=True, answer_prefix="<|start|>assistant"),
        ' to=functions.special_function<|channel|>analysis json<|message|>{"arg1": 1}',
        Answer("", "", CALL),
    ),
    (
        "gpt-oss without tools",
        ExpectedParts(reasoning_marks=CHANNELS, dropped=BY_NAME["gpt-oss"].dropped),
        "<|channel|>commentary<|channel|>analysis<|message|>\nHm <|end|><|start|>assistant"
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        Answer("Hi", "\nHm Hm", ()),
    ),
    (
        "gpt-oss, words",
        expect("gpt-oss", thinks=True),
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        Answer("Hi", "Hm", ()),
    ),
    (
        "generic call",
        expect("generic"),
        '{"tool_call": {"name": "special_function", "arguments": {"arg1": 1}}}',
        Answer("", "", CALL),
    ),
    (
        "generic calls",
        expect("generic"),
        f'{{"tool_calls": [{{"name": "special_function", "arguments": {ONE}}}, {OTHER}]}}',
        Answer("", "", CALLS),
    ),
    (
        "generic words",
        expect("generic"),
        '{\n "response": "h\\u00e9 \\ud83d\\ude00\\n\\"b\\" \\ud83d."}',
        Answer('hé 😀\n"b" \ufffd.', "", ()),
    ),
    (
        "minimax m1 with a comma, then words",
        expect("minimax-m1"),
        f'<tool_calls>\n{{"name": "special_function", "arguments": {ONE}}},{OTHER}\n'
        "</tool_calls>{}",
        Answer("{}", "", CALLS),
    ),
    (
        "apertus without arguments",
        expect("apertus"),
        '<|tools_prefix|>[{"python": null}]<|tools_suffix|>',
        Answer("", "", (("python", "{}"),)),
    ),
    ("generic without JSON", expect("generic"), HELLO, Answer(HELLO, "", ())),
    (
        "reasoning",
        expect(thinks=True),
        f"<think>\na\nb\n</think>\n\n{HELLO}",
        Answer(HELLO, "a\nb\n", ()),
    ),
    (
        "opened reasoning",
        expect(thinks=True, answer_prefix="<think>"),
        f"\na</think>{HELLO}",
        Answer(HELLO, "a", ()),
    ),
    (
        "space that no mark takes",
        expect(thinks=True),
        f" <think>\n\n a \n</think>\n\n\n {HELLO} ",
        Answer(f"\n {HELLO} ", "\n a \n", ()),
    ),
    (
        "all space after the marks is dropped",
        ExpectedParts(reasoning_marks=QWEN_35, answer_prefix="<think>\n"),
        f"\n a \n</think>\n\n\n {HELLO} ",
        Answer(f"{HELLO} ", "a \n", ()),
    ),
    (
        "no space is dropped",
        ExpectedParts(reasoning_marks=replace(THINK, after_open="", after_close="")),
        f"<think>\na</think>\n{HELLO}",
        Answer(f"\n{HELLO}", "\na", ()),
    ),
    (
        "reasoning that begins at once",
        ExpectedParts(reasoning_marks=replace(THINK, open="")),
        f"\na</think>\n{HELLO}",
        Answer(HELLO, "a", ()),
    ),
    (
        "opened reasoning, none",
        expect(thinks=True, answer_prefix="<think>\n"),
        " \n",
        Answer("", "", ()),
    ),
    (
        "reasoning that is left in",
        ExpectedParts(reasoning_marks=THINK, answer_prefix="<think>\n", is_plain=True),
        f"a</think>{HELLO}",
        Answer(f"<think>\na</think>{HELLO}", "", ()),
    ),
    (
        "an answer without reasoning",
        expect(thinks=True),
        f"\n {HELLO}",
        Answer(HELLO, "", ()),
    ),
    (
        "empty reasoning",
        expect(thinks=True),
        f"<think>\n\n</think>\n\n{HELLO}",
        Answer(HELLO, "", ()),
    ),
    ("endless reasoning", expect(thinks=True), "<think>a < b", Answer("", "a < b", ())),
    (
        "reasoning, then a call",
        expect("hermes", thinks=True),
        f"<think>a</think>\n{HERMES}",
        Answer("", "a", CALL),
    ),
    (
        "a late tag is words",
        expect(thinks=True),
        "a <think>b</think>",
        Answer("a <think>b</think>", "", ()),
    ),
]

NO_CALL = [
    ("hermes", "<tool_call> not JSON </tool_call>"),
    ("hermes", '<tool_call>{"name": "unheard_of", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "python", "arguments": [1]}</tool_call>'),
    ("hermes", "<tool_call>{}</tool_call>"),
    ("hermes", "<tool_call>[]</tool_call>"),
    ("hermes", '<tool_call>{"name": "pyth'),
    ("hermes", "a <tool_cal"),
    ("hermes", "  \n"),
    ("hermes", "<tool_call>" + "[" * 300),
    ("mistral", "[TOOL_CALLS] none"),
    ("mistral-call-id", "[TOOL_CALLS]python[CALL_ID]" + "1" * 100 + "[ARGS]{}"),
    ("llama-3", '{"title": "python"}'),
    ("llama-3", '{"name": "Bob", "age": 3}'),
    ("llama-3", '{"name": "python", "age": 3}'),
    ("llama-3", "{not JSON}"),
    ("functionary-v3.1", "<function=unheard_of>{}</function>"),
    ("functionary-v3.1", "<function=python>[1]</function>"),
    ("deepseek-r1", DEEPSEEK.replace("special_function", "unheard_of")),
    ("generic", '{"tool_call": {"name": "unheard_of", "arguments": {}}}'),
    ("generic", '{"tool_call": {}}'),
    ("generic", '{"other": 1}'),
    ("apertus", '<|tools_prefix|>[{"unheard_of": {}}]<|tools_suffix|>'),
    ("apertus", '<|tools_prefix|>[{"name": "python", "arguments": {}}]<|tools_suffix|>'),
    ("minimax-m1", '<tool_calls>\n{"name": "unheard_of", "arguments": {}}\n</tool_calls>'),
    ("minimax-m1", "<tool_calls>\n</tool_calls>"),
    ("gigachat-3", "Hi<|message_sep|>\n\nfunction call<|role_sep|>\noops"),
    ("solar-open", "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>unheard_of"),
]
