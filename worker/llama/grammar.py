"""Bounds on a GBNF text before llama.cpp's parser sees it.

The parser recurses on parentheses (200,000 of them end the process) and multiplies repetitions
out, so both are measured here first.
"""

from protocol.errors import InvalidRequest

MAX_DEPTH = 200
MAX_SYMBOLS = 250_000
"""Symbols after repetitions are multiplied out, each character of a literal one; each costs some
50 bytes in the parser."""

MAX_REPEAT = 2000


def check_grammar(text: str) -> None:
    """Raise `InvalidRequest` for a grammar that is too deep or grows too large."""
    depth, sizes, last = 0, [0], 0
    i = 0
    while i < len(text):
        char = text[i]
        if char in '"[':
            start, i = i, _skip_literal(text, i)
            last = max(1, i - start - 1)
        elif char == "#":
            i = _line_end(text, i)
            continue
        elif char == "(":
            depth += 1
            sizes.append(0)
            last = 0
            _require(depth <= MAX_DEPTH, f"nested deeper than {MAX_DEPTH}")
        elif char == ")":
            depth = max(0, depth - 1)
            last = sizes.pop() if len(sizes) > 1 else 0
        elif char == "{":
            i, times = _repeat(text, i)
            sizes[-1] += last * max(0, times - 1)
            last *= max(1, times)
            _require(sizes[-1] <= MAX_SYMBOLS, "repetitions multiply out to too many symbols")
            i += 1
            continue
        elif char.isalnum() or char in "-_":
            i = _name_end(text, i)
            last = 1
        elif char.isspace():
            i += 1
            continue
        else:
            last = 1
        sizes[-1] += last
        _require(sizes[-1] <= MAX_SYMBOLS, "too many symbols")
        i += 1


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise InvalidRequest(f"Failed to parse grammar: {problem}", param="grammar")


def _skip_literal(text: str, start: int) -> int:
    """Return the index of the quote or bracket that closes a literal."""
    closing = '"' if text[start] == '"' else "]"
    i = start + 1
    while i < len(text) and text[i] != closing:
        i += 2 if text[i] == "\\" else 1
    return i


def _name_end(text: str, start: int) -> int:
    """Return the index of the last character of a rule's name."""
    i = start
    while i + 1 < len(text) and (text[i + 1].isalnum() or text[i + 1] in "-_"):
        i += 1
    return i


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _repeat(text: str, start: int) -> tuple[int, int]:
    """Return the index of the closing brace and the larger bound of `{m}`, `{m,}` or `{m,n}`."""
    end = text.find("}", start)
    if end < 0:
        return len(text), 1
    bounds = [part.strip() for part in text[start + 1 : end].split(",")]
    # int() refuses thousands of digits, and nine are too many already.
    numbers = [int(part[:9]) for part in bounds if part.isascii() and part.isdigit()]
    times = max(numbers, default=1)
    _require(times <= MAX_REPEAT, f"more than {MAX_REPEAT} repetitions")
    return end, times
