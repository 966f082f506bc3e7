"""Parts of random requests: texts, schemas, tools, messages, and how tokens are chosen."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

_TEXTS = (
    *("Once upon a time", "The sea is", "def f(x):\n    return", "é😀 naïve", "1, 2, 3,"),
    *("Hello! How are", '{"a": ', "A B C D", "\n\n", "  leading", "word " * 30, "漢字 Ünïcödé"),
    *("<|im_start|>user\nhi", "It's"),
)
_STOPS = ("a", "e ", "the", "\n", ".", "1", "x", "é", " t", "ing", ",")
_SAMPLERS = (
    *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc"),
    "temperature",
)
GRAMMARS = (
    "root ::= [a-z ]+",
    'root ::= "yes" | "no"',
    'root ::= ("a" | "b")* "c"',
    "root ::= [0-9]{1,5}",
)
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
}
_ZONE: dict[str, Any] = {
    "type": "object",
    "properties": {"tz": {"type": "string", "enum": ["UTC", "CET"]}},
    "required": ["tz"],
}
_EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
SCHEMAS: tuple[Any, ...] = (
    PLACE,
    {"enum": ["x", "yy", 3, None]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    {"type": "string", "pattern": "^[ab]{2,5}$"},
    {"anyOf": [{"type": "integer", "minimum": 3, "maximum": 77}, {"const": "k"}]},
    {"type": "object", "additionalProperties": {"type": "number"}},
    {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d"}},
        "required": ["x"],
        "additionalProperties": False,
        "$defs": {"d": {"type": ["string", "null"], "maxLength": 4}},
    },
)
PARAMETERS = {"weather": PLACE, "get_time": _ZONE, "empty": _EMPTY}
"""Tools by name. One without parameters, or one that is required, is treated otherwise."""
_SAMPLING: dict[str, tuple[float, tuple[Any, ...]]] = {
    "top_k": (0.25, (1, 3, 40, 0, -1, 1000)),
    "top_p": (0.25, (0.1, 0.5, 0.95, 1.0, 1.5)),
    "min_p": (0.2, (0, 0.1, 0.5)),
    "typical_p": (0.1, (0.2, 0.7, 1)),
    "repeat_penalty": (0.15, (1.1, 1.5, 0.7)),
    "repeat_last_n": (0.15, (0, 5, 64)),
    "presence_penalty": (0.1, (0.5, -1, 2)),
    "frequency_penalty": (0.1, (0.5, -1, 2)),
    "dry_multiplier": (0.1, (0.8, 2)),
    "xtc_probability": (0.1, (0.5, 1)),
    "mirostat": (0.1, (0, 1, 2)),
    "dynatemp_range": (0.1, (0.2, 1)),
    "top_n_sigma": (0.1, (1, 2, -1)),
    "ignore_eos": (0.1, (True, False)),
    "logit_bias": (0.15, ([[253, -100]], [[260, 5], [28, False]], {"260": 3}, {" the": 2.5})),
}


def text(chance: Random) -> str:
    """Draw a text."""
    return "".join(chance.choices(_TEXTS, k=chance.choice((1, 1, 1, 2, 3))))


def stops(chance: Random) -> list[str]:
    """Draw stop strings that are likely to come."""
    return chance.sample(_STOPS, chance.randint(1, 3))


def add(
    body: dict[str, Any], chance: Random, share: float, name: str, draw: Callable[[], Any]
) -> None:
    """Set a field in this share of the requests."""
    if chance.random() < share:
        body[name] = draw()


def sampling(chance: Random) -> dict[str, Any]:
    """Draw parameters under which a request has one answer."""
    body: dict[str, Any] = {
        "temperature": chance.choice((0, 0, 0, 0.3, 0.8, 1.5, 2.5)),
        "seed": chance.choice((1, 42, 7, 2**31, 2**32 - 6)),
        "cache_prompt": False,
    }
    for name, (share, values) in _SAMPLING.items():
        add(body, chance, share, name, partial(chance.choice, values))
    n = chance.randint(1, 6)
    add(body, chance, 0.08, "samplers", lambda: chance.sample(_SAMPLERS, n))
    return body


def content(chance: Random) -> Any:
    """Draw what a message says: a text, or texts as parts."""
    if chance.random() < 0.7:
        return text(chance)
    return [{"type": "text", "text": text(chance)} for _ in range(chance.randint(1, 2))]


def messages(chance: Random, *, has_tools: bool = False) -> list[dict[str, Any]]:
    """Draw a conversation, sometimes with a call, or an answer that is to be gone on with."""
    said: list[dict[str, Any]] = []
    if chance.random() < 0.4:
        said.append({"role": "system", "content": content(chance)})
    for _ in range(chance.choice((0, 0, 1, 2))):
        said.append({"role": "user", "content": content(chance)})
        if has_tools and chance.random() < 0.4:
            function = {"name": "weather", "arguments": '{"a": 3}'}
            call = {"id": "c1", "type": "function", "function": function}
            said.append({"role": "assistant", "content": "hm", "tool_calls": [call]})
            said.append({"role": "tool", "tool_call_id": "c1", "content": "sunny"})
        else:
            said.append({"role": "assistant", "content": content(chance)})
    said.append({"role": "user", "content": content(chance)})
    if chance.random() < 0.12:
        said.append({"role": "assistant", "content": text(chance)})
    return said
