"""Odd values: what a mutation puts in the place of a good one."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import describe

FIELDS = sorted(
    {name for row in describe(SamplingParams) for name in (row.name, *row.spec.aliases)}
    | {
        *("stream", "stream_options", "response_format", "tools", "tool_choice", "functions"),
        *("function_call", "parallel_tool_calls", "reasoning_effort", "reasoning_format"),
        *("chat_template_kwargs", "add_generation_prompt", "cache_prompt", "image_data", "user"),
        *("modalities", "metadata", "logprobs", "top_logprobs", "prompt", "messages", "input"),
        *("content", "tokens", "lora", "model", "session_id", "prompt_cache_key", "suffix"),
        *("best_of", "continue_final_message", "previous_response_id", "timings_per_token"),
        *("return_progress", "response_fields", "system_prompt", "thinking_budget_tokens"),
    }
)


class Raw(str):
    """Text that goes into the JSON as it is."""


SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, -0.0, 1e-320, 1e308, 1.5, 70_000),
    *(2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64),
    *(Raw("1e999"), Raw("-1e999"), Raw("9" * 400), Raw("NaN"), Raw("-Infinity"), Raw("01")),
    *("", " ", "0", "1", "-1", "true", "null", "nan", "None", "[]", "{}", "\x00", "a\x00b"),
    *("\n", "\r\nX: y", "\x1b[2J", "\ufeff", "\u202eabc", "e" + "́" * 300, "\U0001f600"),
    *("İ", "ß", "ﷺ" * 20, "\uff11\uff12", "../../etc/passwd", "file:///etc/passwd", "http://[::1"),
    *("{{ 7 * 7 }}", "{% for i in range(9) %}{{ i }}{% endfor %}", "%s%n", "$ref", "__class__"),
    *("<|im_start|>", "<|im_end|>", "<__media__>", "</s>", "<tool_call>", "data:,", "any"),
    *(Raw('"\\ud800"'), Raw('"\\udc00\\ud800"'), Raw('"\\u0000"'), Raw('"\\x"'), Raw("'a'")),
)
EMPTY: tuple[Any, ...] = ([], {}, [[]], [{}], [None], {"": None}, [[], []], [""])

_N_LONG, _N_DEEP, _N_TEXT = 100_000, 10_000, 300_000
LARGE: tuple[Callable[[], Any], ...] = (
    lambda: [1] * _N_LONG,
    lambda: ["a"] * _N_LONG,
    lambda: [{}] * _N_LONG,
    lambda: {str(i): 1 for i in range(_N_LONG)},
    lambda: {str(i): i for i in range(9_000)},
    lambda: [["a", 1]] * 20_000,
    lambda: [{"role": "user", "content": "a"}] * 5_000,
    lambda: Raw("[" * _N_DEEP + "]" * _N_DEEP),
    lambda: Raw('{"a":' * _N_DEEP + "1" + "}" * _N_DEEP),
    lambda: Raw("[" * 60 + "]" * 60),
    lambda: Raw('{"a":' * 60 + "1" + "}" * 60),
    lambda: "a" * _N_TEXT,
    lambda: " " * _N_TEXT,
    lambda: "\n" * _N_TEXT,
    lambda: "é" * _N_TEXT,
    lambda: "\U0001f600" * 50_000,
    lambda: "a b " * 20_000,
    lambda: Raw("9" * 50_000),
    lambda: Raw("0." + "1" * 50_000),
    lambda: Raw("1e" + "9" * 1000),
)

_LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}}}
_CHAIN = {
    "$ref": "#/$defs/a0",
    "$defs": {
        f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 1}"}]}
        for i in range(40)
    },
}
SCHEMAS: tuple[Any, ...] = (
    *({}, True, False, _LOOP, _CHAIN, {"$ref": "#"}, {"$ref": "http://a/b"}, {"$ref": 5}),
    *({"type": "nothing"}, {"type": []}, {"type": ["string", "null"]}, {"enum": []}),
    *({"const": {"a": [1, None]}}, {"enum": [{}] * 2000}, {"minLength": 10**9, "type": "string"}),
    *({"type": "array", "minItems": 10**6}, {"type": "array", "prefixItems": [{}] * 500}),
    *({"type": "integer", "minimum": 10**300}, {"type": "integer", "maximum": -(2**63)}),
    *({"type": "number", "minimum": 1, "maximum": 0}, {"allOf": [{"$ref": "#/allOf/0"}]}),
    *({"oneOf": []}, {"not": {}}, {"properties": {"a" * 5000: {}}}, {"properties": {"": {}}}),
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(800)}},
    {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"] * 900},
    *(
        {"type": "string", "pattern": one}
        for one in (
            *("^(a+)+$", "^" + "(" * 400 + ")" * 400 + "$", "^a{1,99999}$", "^[", "(?=a)", "^\\"),
            *("^(a|a)*$", "^[^\\x00-\\uffff]$", "^(a{0,99}){0,99}$", "^a\n$", "^[z-a]$", "a"),
        )
    ),
    {"type": "string", "format": "date-time"},
)
_STEP = "".join(f"a{i} ::= a{i + 1} | a{i + 1}\n" for i in range(40)) + 'a40 ::= "x"'
GRAMMARS: tuple[str, ...] = (
    *("", " ", "root", "root ::=", 'root ::= "', "root ::= root", "root ::= [", "x ::= y"),
    *('root ::= "a" root | "a" root "b" | "a" root "c"', "root ::= ((((((((((", "root ::= .*"),
    *(
        'root ::= "a"{1,99999}',
        'root ::= ("a"{0,99}){0,99}',
        "root ::= a0\n" + _STEP,
    ),
    *('root ::= "\\', 'root ::= "\\x', "root ::= [\\uD800]", "root ::= <[5]>", "root ::= !<[5]>"),
    *("root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "root ::= " + '"a" | ' * 5000 + '"b"'),
    *('root ::= "a"\nroot ::= "b"', 'root ::= x\nx ::= "a" x | x', "root\x00 ::= 5", '::= "a"'),
)
REFUSABLE: dict[str, tuple[Any, ...]] = {
    "grammar": GRAMMARS,
    "json_schema": SCHEMAS,
    "response_format": tuple(
        {"type": "json_schema", "json_schema": {"name": "a", "schema": one}} for one in SCHEMAS
    ),
    "tools": tuple(
        [{"type": "function", "function": {"name": "a", "parameters": one}}] for one in SCHEMAS
    ),
    "logit_bias": (
        *({"18446744073709551616": 1}, {"-1": 1}, {"a": False}, {"": 1}, [[5, False]], [[5]]),
        *({"5": Raw("1e999")}, {"5": "1"}, [[1.5, 1]], [[[5], 1]], {str(i): 1 for i in range(999)}),
        *([[5, 1]] * 9000, [[2**70, 1]], {"1": None}, [None], {"\U0001f600" * 99: 1}),
    ),
    "stop": ("", [""], ["a"] * 5000, ["a" * 100_000], [None], [["a"]], ["\x00"], {"a": 1}, [1]),
    "n": (0, -1, 2, 8, 9, 128, 10**6, 2**63, 1.0, "1"),
    "samplers": (["top_k"] * 10_000, "kkkk", "x", [""], [[]], ["top_k", "nothing"], [5]),
    "lora": ([{"id": 10**9, "scale": 1}], [{}], [{"id": 0}] * 9999, [{"id": 0, "scale": 1e308}]),
    "repeat_last_n": (2**31 - 1, -1, -2, 10**6),
    "dry_penalty_last_n": (2**31 - 1, -1, -2),
    "reasoning_effort": ("none", "x", 5, "high" * 1000),
    "chat_template_kwargs": (
        *({"messages": 5}, {"tools": "x"}, {"bos_token": []}, {"range": 1}, {"raise_exception": 1}),
        *({"enable_thinking": "x"}, {"a": {"b": 1}}, {"add_generation_prompt": "no"}, {"loop": 1}),
    ),
    "image_data": ([{"data": "x", "id": 1}], [{"data": "A" * 100_000, "id": -1}], "x"),
    "response_fields": (["a/b/c"], ["/"], [""], ["content"] * 9999, ["../x"]),
    "stream_options": ({"include_usage": 5}, {"x": 1}, [], {"include_usage": True}),
}


def odd(rng: random.Random) -> Any:
    """Return any odd value; large ones are rare, for they take long to write."""
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(SCALARS)
    if kind < 0.9:
        return copy.deepcopy(rng.choice(EMPTY))
    return rng.choice(LARGE)()


def written(value: Any) -> bytes:
    """Write JSON; what is `Raw` goes in as it is."""
    raws: list[str] = []

    def marked(inner: Any) -> Any:
        if isinstance(inner, Raw):
            raws.append(inner)
            return f"@raw {len(raws) - 1}@"
        if isinstance(inner, dict):
            return {key: marked(one) for key, one in inner.items()}
        if isinstance(inner, list):
            return [marked(one) for one in inner]
        return inner

    text = json.dumps(marked(value), ensure_ascii=False)
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw {number}@"', raw)
    return text.encode("utf-8", "surrogatepass")
