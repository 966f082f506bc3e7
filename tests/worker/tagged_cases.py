"""Calls whose arguments stand in tags, and what they come to; most are llama.cpp's own tests."""

from tests.worker.chat_cases import (
    BY_NAME,
    CALL,
    CALLS,
    HELLO,
    NAMES,
    QWEN_35,
    Answer,
)
from worker.output.chat_parser.parser import ExpectedParts
from worker.output.chat_parser.tagged import ANY_TYPE, Types
from worker.output.formats.reasoning_marks import REASONING_ROWS

NUMBER, STRING = frozenset({"number"}), frozenset({"string"})
TYPES: dict[str, Types] = {
    "special_function": {"arg1": NUMBER},
    "special_function_with_opt": {"arg1": NUMBER, "arg2": NUMBER},
    "python": {
        "code": STRING,
        "todos": frozenset({"array"}),
        "opt": frozenset({"string", "null", "number"}),
        "flag": frozenset({"boolean"}),
        "any": ANY_TYPE,
    },
}


def expect_tagged(tools: str, *, answer_prefix: str = "") -> ExpectedParts:
    """What the prompt of a format lets one expect."""
    return ExpectedParts(
        tools=BY_NAME[tools],
        names=NAMES,
        types=TYPES,
        reasoning_marks=QWEN_35 if answer_prefix else None,
        answer_prefix=answer_prefix,
    )


def qwen(name: str, **arguments: str) -> str:
    """A call as Qwen3-Coder writes it."""
    text = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{text}</function>\n</tool_call>"


def glm(name: str, **arguments: str) -> str:
    """A call as GLM 4.6 writes it."""
    text = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{text}</tool_call>"


def invoke(name: str, **arguments: str) -> str:
    """A call as MiniMax M2 writes it, without what stands around all calls."""
    text = "".join(
        f'<parameter name="{key}">{value}</parameter>\n' for key, value in arguments.items()
    )
    return f'<invoke name="{name}">\n{text}</invoke>\n'


def minimax(*calls: str) -> str:
    """All of MiniMax M2's calls."""
    return f"<minimax:tool_call>\n{''.join(calls)}</minimax:tool_call>"


def kimi(*calls: tuple[str, str, dict[str, str]]) -> str:
    """All of Kimi K3's calls, and the end of its message."""
    texts = []
    for i, (name, kind, arguments) in enumerate(calls):
        inner = "".join(
            f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
            for key, value in arguments.items()
        )
        head = f'<|open|>call tool="{name}" index="{i + 1}"<|sep|>'
        texts.append(f"{head}{inner}<|close|>call<|sep|>")
    tools = f"<|open|>tools<|sep|>{''.join(texts)}<|close|>tools<|sep|>"
    return f"{tools}<|close|>message<|sep|><|end_of_msg|>"


KIMI_ONE = "special_function", "number", {"arg1": "1"}
KIMI_TWO = "special_function_with_opt", "number", {"arg1": "1", "arg2": "2"}


def expect_marked(name: str, answer_prefix: str = "") -> ExpectedParts:
    """What the prompt of a model with marks around all parts lets one expect."""
    tools = BY_NAME[name]
    row = next(row for row in REASONING_ROWS if row.marks == tools.marks)
    return ExpectedParts(
        tools=tools,
        names=NAMES,
        types=TYPES,
        reasoning_marks=row.reasoning_marks,
        dropped=tools.dropped,
        answer_prefix=answer_prefix,
    )


def muse(name: str, arguments: dict[str, str]) -> str:
    """A message of Muse Glimmer to a tool, without its beginning and end."""
    inner = "".join(
        f'<atem:parameter name="{key}">{value}</atem:parameter>\n'
        for key, value in arguments.items()
    )
    call = f'<atem:invoke name="{name}">\n{inner}</atem:invoke>\n'
    return f" to={name}<|message|><atem:function_calls>\n{call}</atem:function_calls>"


START = "<|start|>assistant"
MUSE_ONE = muse("special_function", {"arg1": "1"})
MUSE_TWO = muse("special_function_with_opt", {"arg1": "1", "arg2": "2"})
MUSE_HM = f" to=self<|message|>Hm<|eom|>{START}"


def seed(text: str) -> str:
    """A call as Seed-OSS writes it."""
    text = text.replace("tool_call>", "seed:tool_call>")
    return text.replace(">\n1\n", ">1").replace(">\n2\n", ">2")


CODE = 'def hello():\n    print("Hello, world!")\n\nhello()'
CODE_JSON = '{"code": "def hello():\\n    print(\\"Hello, world!\\")\\n\\nhello()"}'
TODOS = '[{"item": "a </parameter>\\n", "selected": false}, {"item": "b"}]'
TWO = qwen("special_function", arg1="1"), qwen("special_function_with_opt", arg1="1", arg2="2")
HEADLESS = TWO[0].removeprefix("<tool_call>\n")


def python(arguments: str) -> Answer:
    """One call of `python`."""
    return Answer("", "", (("python", arguments),))


TAGGED_CASES: list[tuple[str, ExpectedParts, str, Answer]] = [
    *(
        (name, expect_tagged(tools), text, Answer("", "", CALL))
        for name, tools, text in (
            ("qwen", "qwen3.5", TWO[0]),
            ("qwen coder", "qwen3-coder", TWO[0]),
            ("qwen coder without a head", "qwen3-coder", HEADLESS),
            ("qwen on one line", "qwen3-coder", TWO[0].replace("\n", "")),
            ("seed", "seed-oss", seed(TWO[0])),
            ("glm 4.6", "glm-4.5", glm("special_function", arg1="1")),
            ("glm 4.7", "glm-4.5", glm("special_function", arg1="1").replace("\n", "")),
            ("minimax", "minimax-m2", minimax(invoke("special_function", arg1="1"))),
        )
    ),
    *(
        (name, expect_tagged(tools), text, Answer("", "", CALLS))
        for name, tools, text in (
            ("qwen, two", "qwen3.5", "\n".join(TWO)),
            ("qwen coder, two", "qwen3-coder", f"{HEADLESS}\n{TWO[1]}"),
            ("seed, two", "seed-oss", seed("\n".join(TWO))),
            (
                "glm, two",
                "glm-4.5",
                glm("special_function", arg1="1")
                + glm("special_function_with_opt", arg1="1", arg2="2"),
            ),
            (
                "minimax, two",
                "minimax-m2",
                minimax(
                    invoke("special_function", arg1="1"),
                    invoke("special_function_with_opt", arg1="1", arg2="2"),
                ),
            ),
        )
    ),
    *(
        (f"kimi k3: {name}", expect_marked("kimi-k3", "<|open|>think<|sep|>"), text, answer)
        for name, text, answer in (
            (
                "words",
                "Hm<|close|>think<|sep|><|open|>response<|sep|>Hi\n<|close|>response<|sep|>"
                "<|close|>message<|sep|><|end_of_msg|>",
                Answer("Hi\n", "Hm", ()),
            ),
            ("one", f"Hm<|close|>think<|sep|>{kimi(KIMI_ONE)}", Answer("", "Hm", CALL)),
            ("one in reasoning", f"Hm{kimi(KIMI_ONE)}", Answer("", "Hm", CALL)),
            ("words at once", "Hm<|open|>response<|sep|>Hi", Answer("Hi", "Hm", ())),
            (
                "words and two",
                "Hm<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|>"
                f"{kimi(KIMI_ONE, KIMI_TWO)}",
                Answer("Hi", "Hm", CALLS),
            ),
        )
    ),
    *(
        (
            f"kimi k3: {value} as {kind}",
            expect_marked("kimi-k3"),
            kimi(("python", kind, {key: value})),
            answer,
        )
        for key, kind, value, answer in (
            ("code", "string", CODE, python(CODE_JSON)),
            ("opt", "string", "5", python('{"opt": "5"}')),
            ("opt", "number", "5", python('{"opt": 5}')),
            ("opt", "array", "[5]", python('{"opt": "[5]"}')),
            ("todos", "array", TODOS, python(f'{{"todos": {TODOS}}}')),
            ("new", "string", "true", python('{"new": "true"}')),
            ("new", "boolean", "true", python('{"new": true}')),
        )
    ),
    ("kimi k3: no arguments", expect_marked("kimi-k3"), kimi(("python", "", {})), python("{}")),
    (
        "kimi k3: a type without end",
        expect_marked("kimi-k3"),
        kimi(("python", "x" * 300, {"code": "a"})).partition("<|close|>")[0],
        Answer("x" * 300 + '"<|sep|>a', "", (("python", '{"code": null}'),)),
    ),
    *(
        (f"muse: {name}", expect_marked("muse-glimmer", START), text, answer)
        for name, text, answer in (
            ("words", f"{MUSE_HM} to=user<|message|>Hi\n<|eot|>", Answer("Hi\n", "Hm", ())),
            ("words alone", " to=user<|message|>Hi to=me", Answer("Hi to=me", "", ())),
            ("nobody's words", "<|message|>Hi", Answer("Hi", "", ())),
            ("one", f"{MUSE_HM}{MUSE_ONE}<|eot|>", Answer("", "Hm", CALL)),
            ("two", f"{MUSE_ONE}<|eom|>{START}{MUSE_TWO}", Answer("", "", CALLS)),
            (
                "all",
                f"{MUSE_HM} to=user<|message|>Hi<|eom|>{START}{MUSE_ONE}<|eom|>{START}{MUSE_HM}"
                f"{MUSE_TWO}<|eom|>{START} to=user<|message|>!",
                Answer("Hi!", "HmHm", CALLS),
            ),
        )
    ),
    ("words, then qwen", expect_tagged("qwen3.5"), HELLO + TWO[0], Answer(HELLO, "", CALL)),
    ("code", expect_tagged("qwen3.5"), qwen("python", code=CODE), python(CODE_JSON)),
    ("glm's code", expect_tagged("glm-4.5"), glm("python", code=CODE), python(CODE_JSON)),
    (
        "minimax's code",
        expect_tagged("minimax-m2"),
        minimax(invoke("python", code=CODE)),
        python(CODE_JSON),
    ),
    (
        "a last line break is kept",
        expect_tagged("qwen3.5"),
        qwen("python", code="#include\n"),
        python('{"code": "#include\\n"}'),
    ),
    (
        "so is an indent",
        expect_tagged("qwen3.5"),
        qwen("python", code="    a\n\n  <b></parameter>\n </parameter>\t"),
        python('{"code": "    a\\n\\n  <b></parameter>\\n </parameter>\\t"}'),
    ),
    ("an empty string", expect_tagged("qwen3.5"), qwen("python", code=""), python('{"code": ""}')),
    (
        "an empty string on no line",
        expect_tagged("qwen3.5"),
        qwen("python", code="").replace("\n\n", "\n"),
        python('{"code": ""}'),
    ),
    (
        "quotes",
        expect_tagged("glm-4.5"),
        glm("python", code='é"\\'),
        python('{"code": "é\\"\\\\"}'),
    ),
    (
        "an array",
        expect_tagged("qwen3.5"),
        qwen("python", todos=TODOS),
        python(f'{{"todos": {TODOS}}}'),
    ),
    (
        "glm's array",
        expect_tagged("glm-4.5"),
        glm("python", todos=TODOS),
        python(f'{{"todos": {TODOS}}}'),
    ),
    (
        "null or text: null",
        expect_tagged("qwen3.5"),
        qwen("python", opt="null"),
        python('{"opt": null}'),
    ),
    (
        "null or text: text",
        expect_tagged("qwen3.5"),
        qwen("python", opt="nul"),
        python('{"opt": "nul"}'),
    ),
    ("null or text: 5", expect_tagged("glm-4.5"), glm("python", opt="-5"), python('{"opt": -5}')),
    (
        "null or text: true",
        expect_tagged("glm-4.5"),
        glm("python", opt="true"),
        python('{"opt": "true"}'),
    ),
    ("true", expect_tagged("glm-4.5"), glm("python", flag=" true "), python('{"flag": true}')),
    (
        "not a truth",
        expect_tagged("qwen3.5"),
        qwen("python", flag="True"),
        python('{"flag": "True"}'),
    ),
    ("no number", expect_tagged("qwen3.5"), qwen("python", any="NaN"), python('{"any": "NaN"}')),
    ("unheard of", expect_tagged("qwen3.5"), qwen("python", new="[1"), python('{"new": "[1"}')),
    (
        "unheard of JSON",
        expect_tagged("qwen3.5"),
        qwen("python", new="[1]"),
        python('{"new": [1]}'),
    ),
    ("no arguments", expect_tagged("qwen3.5"), qwen("python"), python("{}")),
    (
        "glm without arguments",
        expect_tagged("glm-4.5"),
        "<tool_call>python</tool_call>",
        python("{}"),
    ),
    ("minimax without", expect_tagged("minimax-m2"), minimax(invoke("python")), python("{}")),
    (
        "a call that loses its thread",
        expect_tagged("qwen3.5"),
        "<tool_call>\n<function=python>\n<parameter=code>\na\n</parameter>\noops",
        Answer("oops", "", (("python", '{"code": "a"}'),)),
    ),
    (
        "after reasoning",
        expect_tagged("qwen3.5", answer_prefix="<think>"),
        f"Hm</think>\n\n{TWO[0]}",
        Answer("", "Hm", CALL),
    ),
    (
        "inside reasoning",
        expect_tagged("qwen3.5", answer_prefix="<think>"),
        f"Need to see.\n{TWO[0]}",
        Answer("", "Need to see.\n", CALL),
    ),
    (
        "instead of reasoning",
        expect_tagged("qwen3.5", answer_prefix="<think>"),
        f"\n{TWO[0]}",
        Answer("", "", CALL),
    ),
    (
        "inside reasoning, no call",
        expect_tagged("qwen3.5", answer_prefix="<think>"),
        "a <tool_call>\n<function=python>\noops</think>b",
        Answer("<tool_call>\n<function=python>\noops</think>b", "a ", ()),
    ),
]

TAGGED_NO_CALL = [
    ("qwen3.5", "<tool_call>\n<function=unheard_of>\n</function>\n</tool_call>"),
    ("qwen3.5", "<tool_call>\n<function=python>\noops"),
    ("qwen3.5", "<tool_call>\n<function=python>\n<parameter=co"),
    ("qwen3.5", '<tool_call>\n{"name": "python", "arguments": {}}\n</tool_call>'),
    ("qwen3.5", f"<tool_call>\n<function=python>\n<parameter={'x' * 300}"),
    ("qwen3.5", HEADLESS),
    ("qwen3-coder", "#include <functional>"),
    ("glm-4.5", "<tool_call>pythonic</tool_call>"),
    ("glm-4.5", "<tool_call>special_functio"),
    ("minimax-m2", "<minimax:tool_call>\n</minimax:tool_call>"),
]
