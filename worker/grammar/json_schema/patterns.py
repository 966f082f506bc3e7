"""Regular expressions as rules: what JSON schemas use of them.

A pattern that is a regular expression but has no equivalent (look-around, `\\w`, not anchored, …)
raises `UnsupportedPattern`: any string is taken then, as in llama.cpp. One that is none raises
`SchemaError`.
"""

import re
from collections.abc import Callable

from worker.grammar.limits import MAX_PATTERN_CHARS, MAX_PATTERN_DEPTH, SchemaError
from worker.grammar.rules import is_many, repetition

AddRule = Callable[[str, str], str]

_SPECIAL = frozenset("|.()[]{}*+?^$")
_ESCAPE = re.compile(r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])')
"""The escapes of a GBNF literal."""


class UnsupportedPattern(Exception):
    """A regular expression that no grammar here can express."""


def pattern_rule(pattern: str, name: str, add_rule: AddRule) -> str:
    """Add the rule of the JSON strings that match a pattern; return its name."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise SchemaError(f"pattern: longer than {MAX_PATTERN_CHARS} characters")
    if len(pattern) < 2 or pattern[0] != "^" or pattern[-1] != "$":
        raise UnsupportedPattern("not anchored with '^' and '$'")
    reader = _PatternReader(pattern, name, add_rule)
    return add_rule(name, f'"\\"" ({reader.read()}) "\\""')


class _PatternReader:
    """Walks over a pattern once; a sequence is a list of (text, whether it is a literal)."""

    def __init__(self, pattern: str, name: str, add_rule: AddRule) -> None:
        self._pattern = pattern
        self._text = pattern[1:-1]
        self._name = name
        self._add_rule = add_rule
        self._i = 0
        self._depth = 0
        self._shared: dict[str, str] = {}

    def read(self) -> str:
        """Return the body of the whole pattern."""
        body = self._sequence()
        if self._depth:
            raise self._invalid("unbalanced parentheses")
        return body

    def _sequence(self) -> str:
        """Read up to the parenthesis that closes, or to the end."""
        parts: list[tuple[str, bool]] = []
        while self._i < len(self._text):
            char = self._text[self._i]
            if char == ")":
                self._i += 1
                if not self._depth:
                    raise self._invalid("unbalanced parentheses")
                self._depth -= 1
                break
            if char in "*+?{":
                self._repeat(parts, char)
            else:
                parts.append(self._part(char))
        return _joined(parts)

    def _part(self, char: str) -> tuple[str, bool]:
        match char:
            case ".":
                self._i += 1
                return self._add_rule("dot", "[^\\x0A\\x0D]"), False
            case "|":
                self._i += 1
                return "|", False
            case "(":
                return self._group(), False
            case "[":
                return self._class(), False
            case "^" | "$":
                raise UnsupportedPattern("anchor inside the pattern")
        return self._literal(), True

    def _group(self) -> str:
        self._i += 1
        if self._text.startswith("?", self._i):
            if not self._text.startswith("?:", self._i):
                raise UnsupportedPattern("unsupported group syntax")
            self._i += 2
        self._depth += 1
        if self._depth > MAX_PATTERN_DEPTH:
            raise UnsupportedPattern("pattern nesting too deep")
        return f"({self._sequence()})"

    def _class(self) -> str:
        start = self._i
        self._i += 1
        while self._i < len(self._text) and self._text[self._i] != "]":
            self._i += self._escape_length("in character class") or 1
        if self._i >= len(self._text):
            raise self._invalid("unterminated character class")
        self._i += 1
        return self._text[start : self._i]

    def _escape_length(self, where: str) -> int:
        """Return the length of the escape here, 0 if there is none; it must be one of GBNF's."""
        if self._text[self._i] != "\\":
            return 0
        found = _ESCAPE.match(self._text, self._i)
        if found is None:
            raise UnsupportedPattern(f"unsupported escape {where}")
        return len(found[0])

    def _literal(self) -> str:
        """Read plain characters, but leave the last to a repetition that follows it."""
        found = ""
        while self._i < len(self._text):
            char, following = self._text[self._i], self._text[self._i + 1 : self._i + 2]
            if char == "\\":
                found += self._escaped(following)
            elif char == '"':
                found += '\\"'
                self._i += 1
            elif char not in _SPECIAL and (
                not found or not following or following == "." or following not in _SPECIAL
            ):
                found += char
                self._i += 1
            else:
                break
        if not found:
            raise UnsupportedPattern(f"unsupported character: {self._text[self._i]}")
        return found

    def _escaped(self, following: str) -> str:
        if not following:
            raise self._invalid("trailing backslash")
        start = self._i
        if following in _SPECIAL:
            self._i += 2
            # A bracket or a dot means nothing in a GBNF literal.
            return following
        self._i += self._escape_length("outside a character class")
        return self._text[start : self._i]

    # ---- repetitions --------------------------------------------------------------------------

    def _repeat(self, parts: list[tuple[str, bool]], char: str) -> None:
        times = None
        if char == "{":
            times = self._times()
        else:
            self._i += 1
        if not parts:
            raise self._invalid("nothing to repeat")
        text, is_literal = parts[-1]
        quoted = f'"{text}"' if is_literal else text
        if times is None:
            shares = not is_literal and is_many(text)
            parts[-1] = (self._share(text) if shares else quoted) + char, False
            return
        if not is_literal:
            quoted = self._share(text)
        parts[-1] = repetition(quoted, *times, self._share), False

    def _share(self, body: str) -> str:
        """Make a rule of what is repeated, once."""
        if body not in self._shared:
            n_shared = len(self._shared) + 1
            self._shared[body] = self._add_rule(f"{self._name}-{n_shared}", body)
        return self._shared[body]

    def _times(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._i)
        if end < 0:
            raise UnsupportedPattern("unterminated curly brackets")
        numbers = self._text[self._i + 1 : end].split(",")
        self._i = end + 1
        if len(numbers) > 2 or not all(re.fullmatch("[0-9]{0,9}", number) for number in numbers):
            raise UnsupportedPattern("invalid number in curly brackets")
        if len(numbers) == 1 and not numbers[0]:
            raise UnsupportedPattern("invalid number in curly brackets")
        least = int(numbers[0] or 0)
        most = int(numbers[-1]) if numbers[-1] else None
        if most is not None and least > most:
            raise self._invalid("the numbers in curly brackets are out of order")
        return least, most

    def _invalid(self, problem: str) -> SchemaError:
        return SchemaError(f"Invalid pattern {self._pattern}: {problem}")


def _joined(parts: list[tuple[str, bool]]) -> str:
    """Write a sequence, literals side by side as one."""
    found: list[str] = []
    plain = ""
    for text, is_literal in parts:
        if is_literal:
            plain += text
            continue
        if plain:
            found.append(f'"{plain}"')
            plain = ""
        found.append(text)
    if plain:
        found.append(f'"{plain}"')
    return " ".join(found)
