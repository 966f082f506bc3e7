"""CPUs as Linux lists them: `0-3,8`."""

import re
from collections.abc import Iterable

from protocol.errors import ConfigError

ANYWHERE = "all"


def parse_cpus(text: str) -> frozenset[int]:
    """Read a list as in `0-3,8`; none is `all`. Raises `ConfigError`."""
    found: set[int] = set()
    for part in text.split(",") if text != ANYWHERE else ():
        low, dash, high = part.strip().partition("-")
        first, last = _number(low, text), _number(high if dash else low, text)
        if last < first:
            raise ConfigError(f"cpus '{text}': {first} comes after {last}")
        found.update(range(first, last + 1))
    return frozenset(found)


def _number(text: str, whole: str) -> int:
    if not text.isdecimal() or len(text) > 4:
        raise ConfigError(f"cpus '{whole}': must be a list as in 0-3,8, or all")
    return int(text)


def parse_mask(text: str) -> str:
    """Turn llama-server's mask, bits in hexadecimal, into a list; raises ValueError.

    Without a bit it is `all`, as threads are then bound to no CPU.
    """
    match = re.fullmatch(r"(?:0[xX])?([0-9a-fA-F]{0,256})", text)
    if match is None:
        raise ValueError("must be a mask of CPUs in hexadecimal")
    bits = int(match[1] or "0", 16)
    if not bits:
        return ANYWHERE
    return format_cpus(i for i in range(bits.bit_length()) if bits >> i & 1)


def format_cpus(numbers: Iterable[int]) -> str:
    """Write a list as in `0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs)
