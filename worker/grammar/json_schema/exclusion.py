"""Strings except given ones: the keys that `additionalProperties` may use."""

from typing import Any

from worker.grammar.limits import MAX_EXCLUDED_CHARS, SchemaError
from worker.grammar.rules import json_text

_END = ""
_IN_CLASS = {"]": "\\]", "\\": "\\\\", "^": "\\x5E", "-": "\\-"}


def excluding(names: list[str], char: str) -> str:
    """Return a rule body for JSON strings that differ from all `names`.

    `{"and", "also"}` becomes `["] ( [a] ([l] ([s] ([o] char+ | [^"o] char*) | [^"s] char*) | …`.
    """
    trie: dict[str, Any] = {}
    for name in names:
        written = json_text(name)[1:-1]
        if len(written) > MAX_EXCLUDED_CHARS:
            problem = f"the property name {name[:32]}… is longer than {MAX_EXCLUDED_CHARS}"
            raise SchemaError(f"{problem}, which additionalProperties does not allow")
        place = trie
        for letter in written:
            place = place.setdefault(letter, {})
        place[_END] = {}
    optional = "" if _END in trie else "?"
    return f'["] ( {_branches(trie, char)} ){optional} ["]'


def _branches(place: dict[str, Any], char: str) -> str:
    parts = []
    following = sorted(key for key in place if key != _END)
    for letter in following:
        deeper = place[letter]
        inner = _branches(deeper, char)
        parts.append(f"[{_in_class(letter)}] " + (f"({inner})" if inner else f"{char}+"))
    if following:
        rejected = "".join(_in_class(each) for each in following)
        parts.append(f'[^"{rejected}] {char}*')
    return " | ".join(parts)


def _in_class(char: str) -> str:
    return _IN_CLASS.get(char, char)
