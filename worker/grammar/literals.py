"""Texts in grammars: one as it is, and any text up to one."""

import re

from worker.grammar.builder import GrammarBuilder


def literal(text: str) -> str:
    """Write a text as a GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def until(builder: GrammarBuilder, end: str) -> str:
    """Add the rule of any text that does not contain `end`: the automaton of Knuth, Morris, Pratt.

    Names and texts are llama.cpp's.
    """
    names = [f"until-{re.sub(r'[^a-zA-Z0-9]+', '-', end).strip('-')}"]
    names += [f"{names[0]}-{i:02}" for i in range(1, len(end))]
    for i, name in enumerate(names):
        goes = {char: _prefix(end, end[:i] + char) for char in sorted(set(end[: i + 1]))}
        steps = [f"{_charset(char)} {names[to]}" for char, to in goes.items() if 0 < to < len(end)]
        listed = "".join(_escape(char) for char in sorted(goes) if goes[char])
        builder.add_rule(name, " | ".join(["", *steps, f"[^{listed}] {names[0]}"]).lstrip())
    return names[0]


def _prefix(end: str, text: str) -> int:
    """Length of the longest beginning of `end` that `text` ends with."""
    return next(n for n in range(min(len(end), len(text)), -1, -1) if text.endswith(end[:n]))


def _charset(char: str) -> str:
    return f"[{_escape(char)}]"


def _escape(char: str) -> str:
    return {"\n": "\\n", "\\": "\\\\", "]": "\\]", "[": "\\[", "-": "\\-", "^": "\\^"}.get(
        char, char
    )
