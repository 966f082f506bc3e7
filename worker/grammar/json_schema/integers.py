"""Integers within bounds as a rule: digit by digit, as llama.cpp writes it."""

_MAX_DIGITS = 16
"""Of a number without a bound on that side, as in llama.cpp."""


def integer_rule(minimum: int | None, maximum: int | None) -> str:
    """Return what matches exactly the integers from `minimum` to `maximum`; None is no bound.

    Without a bound on one side a number has at most 16 digits, which a double holds exactly.
    """
    if minimum is not None and maximum is not None:
        return _between(minimum, maximum)
    if minimum is not None:
        return _at_least(minimum)
    assert maximum is not None, "an integer without bounds is a built-in rule"
    if maximum < 0:
        # llama.cpp lets a lone digit have zeros before it; JSON does not.
        least = 1 if maximum <= -10 else 0
        return f'"-" ({_from(str(-maximum), _MAX_DIGITS, least=least)})'
    return f'"-" [1-9] {_digits(0, _MAX_DIGITS - 1)} | {_between(0, maximum)}'


def _between(low: int, high: int) -> str:
    if high < 0:
        return f'"-" ({_between(-high, -low)})'
    if low < 0:
        return f'"-" ({_between(0, -low)}) | {_between(0, high)}'
    parts = []
    first = str(low)
    for n_digits in range(len(first), len(str(high))):
        parts.append(_uniform(first, "9" * n_digits))
        first = "1" + "0" * n_digits
    return " | ".join([*parts, _uniform(first, str(high))])


def _at_least(low: int) -> str:
    if low < 0:
        # The absolute value of a negative number runs from 0 to -low.
        return f'"-" ({_between(0, -low)}) | [0] | [1-9] {_digits(0, _MAX_DIGITS - 1)}'
    if low == 0:
        return f"[0] | [1-9] {_digits(0, _MAX_DIGITS - 1)}"
    return _from(str(low), _MAX_DIGITS, least=1)


def _from(low: str, n_left: int, *, least: int = 0) -> str:
    """As many digits as `low` has and not below it, or more; the first is at least `least`."""
    if not low.strip("0"):
        return _digits(len(low), n_left)
    n_less = max(n_left - 1, 1)
    first = int(low[0])
    parts = []
    if first > least:
        parts.append(f"{_range(least, first - 1)} {_digits(len(low), n_less)}")
    if len(low) == 1:
        return " | ".join([*parts, f"{_range(first, 9)} {_digits(0, n_less)}"])
    parts.append(f"{_range(first, first)} ({_from(low[1:], n_less)})")
    if first < 9:
        parts.append(f"{_range(first + 1, 9)} {_digits(len(low) - 1, n_less)}")
    return " | ".join(parts)


def _uniform(low: str, high: str) -> str:
    """Numbers of equally many digits."""
    n_same = next((i for i in range(len(low)) if low[i] != high[i]), len(low))
    prefix = f'"{low[:n_same]}"' if n_same else ""
    if n_same == len(low):
        return prefix
    return f"{prefix} {_differing(low[n_same:], high[n_same:])}".lstrip()


def _differing(low: str, high: str) -> str:
    """Numbers whose bounds differ in the first digit."""
    first, last, n_rest = int(low[0]), int(high[0]), len(low) - 1
    if n_rest == 0:
        return f"[{first}-{last}]"
    zeros, nines = "0" * n_rest, "9" * n_rest
    rest = _digits(n_rest, n_rest)
    is_reached = False
    if low[1:] == zeros:
        parts = [f"{_range(first, last - 1)} {rest}"]
    else:
        parts = [f"[{first}] ({_uniform(low[1:], nines)})"]
        if first < last - 1:
            is_reached = high[1:] == nines
            parts.append(f"{_range(first + 1, last if is_reached else last - 1)} {rest}")
    if not is_reached:
        parts.append(f"{_range(last, last)} {_uniform(zeros, high[1:])}")
    return "(" + " | ".join(parts) + ")"


def _range(low: int, high: int) -> str:
    return f"[{low}]" if low == high else f"[{low}-{high}]"


def _digits(least: int, most: int) -> str:
    most = max(least, most)
    if least == most == 1:
        return "[0-9]"
    return f"[0-9]{{{least}}}" if least == most else f"[0-9]{{{least},{most}}}"
