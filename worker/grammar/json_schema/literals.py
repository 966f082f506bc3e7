"""The grammar rule of any text up to a literal."""

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache

from worker.grammar.json_schema.builder import GrammarBuilder


def until(builder: GrammarBuilder, *ends: str) -> str:
    """Add the rule of any text that contains none of `ends`; return its name."""
    found = _rules_until(ends)
    for name, body in found:
        builder.add_rule(name, body)
    return found[0][0]


@lru_cache(maxsize=16)
def _rules_until(ends: tuple[str, ...]) -> list[tuple[str, str]]:
    """Write an automaton of Aho and Corasick as rules: names and bodies, the first one first.

    Names and texts are llama.cpp's. Each argument of each tool asks for the same ends.
    """
    name = f"until-{re.sub(r'[^a-zA-Z0-9]+', '-', ends[0]).strip('-')}"
    if name.count("-") > 1 or len(ends) > 1:
        name += f"-{zlib.crc32(''.join(ends).encode()):08x}"  # `a_b` and `a-b` are not the same
    prefixes = list(dict.fromkeys(end[:i] for end in ends for i in range(len(end))))
    names = {text: f"{name}-{i:02}" if i else name for i, text in enumerate(prefixes)}
    starts = {end[0] for end in ends}
    rules = []
    for text in prefixes:
        follows = {end[len(text)] for end in ends if end.startswith(text) and end != text}
        goes = {char: _reached(ends, text + char) for char in sorted(follows | starts | set(text))}
        steps = [
            f"[{_escape(char)}] {names[to]}"
            for char, to in goes.items()
            if to and not any(to.endswith(end) for end in ends)
        ]
        listed = "".join(_escape(char) for char in sorted(goes) if goes[char])
        rules.append((names[text], " | ".join(["", *steps, f"[^{listed}] {name}"]).lstrip()))
    return rules


def _reached(ends: Sequence[str], text: str) -> str:
    """Return the longest beginning of an end that a text ends with."""
    found = (text[i:] for i in range(len(text)))
    return next((prefix for prefix in found if any(end.startswith(prefix) for end in ends)), "")


def _escape(char: str) -> str:
    return {"\n": "\\n", "\\": "\\\\", "]": "\\]", "[": "\\[", "-": "\\-", "^": "\\^"}.get(
        char, char
    )
