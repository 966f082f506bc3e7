"""Rules that every grammar may use, and the small pieces that rules are written from.

The texts are llama.cpp's (common/json-schema-to-grammar.cpp): models see the same constraint.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from worker.grammar.limits import MAX_COUNT, MAX_MANY, SchemaError

SPACE = '| " " | "\\n"{1,2} [ \\t]{0,20}'

PRIMITIVES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "boolean": ('("true" | "false")', ()),
    "decimal-part": ("[0-9]{1,16}", ()),
    "integral-part": ("[0] | [1-9] [0-9]{0,15}", ()),
    "number": (
        '("-"? integral-part) ("." decimal-part)? ([eE] [-+]? integral-part)?',
        ("integral-part", "decimal-part"),
    ),
    "integer": ('("-"? integral-part)', ("integral-part",)),
    "value": (
        "object | array | string | number | boolean | null",
        ("object", "array", "string", "number", "boolean", "null"),
    ),
    "object": (
        '"{" space ( string ":" space value ("," space string ":" space value)* )? space "}"',
        ("string", "value"),
    ),
    "array": ('"[" space ( value ("," space value)* )? space "]"', ("value",)),
    "uuid": (
        '"\\"" [0-9a-fA-F]{8} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4}'
        ' "-" [0-9a-fA-F]{12} "\\""',
        (),
    ),
    "char": (
        '[^"\\\\\\x7F\\x00-\\x1F] | [\\\\] (["\\\\bfnrt] | "u" [0-9a-fA-F]{4})',
        (),
    ),
    "string": ('"\\"" char* "\\""', ("char",)),
    "null": ('"null"', ()),
    "date": (
        '[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | [1-2] [0-9] | "3" [0-1] )',
        (),
    ),
    "time": (
        '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{3} )?'
        ' ( "Z" | ( "+" | "-" ) ( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] )',
        (),
    ),
    "date-time": ('date "T" time', ("date", "time")),
    "date-string": ('"\\"" date "\\""', ("date",)),
    "time-string": ('"\\"" time "\\""', ("time",)),
    "date-time-string": ('"\\"" date-time "\\""', ("date-time",)),
}
"""Name -> (body, rules that it needs)."""

RESERVED = frozenset({"root", *PRIMITIVES})

_THOUSAND = 1000
_MANY = 99
_MANY_INSIDE = re.compile(r"\{(?:[0-9]+,)?[0-9]{3}")
_BAD_NAME = re.compile(r"[^a-zA-Z0-9-]+")
_ESCAPES = {"\r": "\\r", "\n": "\\n", '"': '\\"', "\\": "\\\\"}


def rule_name(name: str) -> str:
    """Return a name as GBNF may spell it."""
    return _BAD_NAME.sub("-", name)


def literal(text: str) -> str:
    """Quote a text."""
    return '"' + re.sub(r'[\r\n"\\]', lambda match: _ESCAPES[match[0]], text) + '"'


def json_text(value: Any) -> str:
    """Write a value as the model will have to: compact, not escaped beyond need."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def constant(value: Any) -> str:
    """Quote the JSON text of a value."""
    return literal(json_text(value))


def is_many(body: str) -> bool:
    """Return whether something in a body is repeated so often that a group must not hold it."""
    return _MANY_INSIDE.search(body) is not None


Share = Callable[[str], str]
"""Makes a rule of a body and returns its name."""


def repetition(
    item: str, least: int, most: int | None, share: Share, *, separator: str = ""
) -> str:
    """Repeat an item; `most` None is without end."""
    if most == 0:
        return ""
    if (least, most) == (0, 1):
        return f"{item}?"
    if separator:
        others = max(0, least - 1), None if most is None else most - 1
        # The parser multiplies what a group names for the first time with the number of times.
        shares = max(least, most or 0) > _MANY
        body = f"{separator} {item}"
        rest = repetition(share(body) if shares else f"({body})", *others, share)
        if least > 0:
            return f"{item} {rest}"
        return share(f"{item} {rest}") + "?" if shares else f"({item} {rest})?"
    if most is None and least in (0, 1):
        return item + "*+"[least]
    if max(least, most or 0) > MAX_COUNT:
        return _many(item, least, most, share)
    return f"{item}{{{least},{'' if most is None else most}}}"


def _many(item: str, least: int, most: int | None, share: Share) -> str:
    """Repeat more often than the grammar parser can count: by the thousand.

    llama.cpp's converter writes the number, and its parser takes what is too much for no bound.
    """
    if least > MAX_MANY:
        raise SchemaError(f"more than {MAX_MANY} repetitions")
    thousand = share(f"{item}{{{_THOUSAND}}}")
    parts = []
    if least:
        parts.append(f"{thousand}{{{least // _THOUSAND}}} {item}{{{least % _THOUSAND}}}")
    extra = None if most is None or most > MAX_MANY else most - least
    if extra is None:
        parts.append(f"{item}*")
    elif extra <= MAX_COUNT:
        parts.append(f"{item}{{0,{extra}}}")
    else:
        # What the thousands leave is at most a thousand and some: no text has many readings.
        n, rest = divmod(extra - _THOUSAND, _THOUSAND)
        parts.append(f"{thousand}{{0,{n}}} {item}{{0,{_THOUSAND + rest}}}")
    return f"({' '.join(parts)})"
