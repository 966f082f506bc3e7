"""Readers of the texts of arguments: each returns a field's value, or raises `ValueError`."""

import json
import math
import re
from pathlib import Path

from protocol.named_file import read_named_text
from protocol.wire.shapes import INT32_MAX


def read_layers(text: str) -> int:
    """Read a number of layers; auto, all and anything below 0 are every layer."""
    return -1 if text in ("auto", "all") else max(-1, int(text))


def read_flash(text: str) -> str:
    """Read on, off and auto with llama-server's synonyms of a boolean."""
    if text in ("auto", "-1"):
        return "auto"
    try:
        return "on" if read_boolean(text) else "off"
    except ValueError:
        raise ValueError("must be one of on, off, auto, true, false, 1, 0") from None


def read_margins(text: str) -> tuple[int, ...]:
    """Read numbers separated by commas or slashes."""
    return tuple(int(part) for part in re.split("[,/]", text))


def read_object(text: str) -> str:
    """Read a JSON object, as text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return text


def read_page_settings(text: str) -> str:
    """Read a JSON object, as text, or nothing."""
    return read_object(text) if text else ""


def read_cpu_range(text: str) -> str:
    """Read CPUs; an end of a range may be left out, as in -3 or 2-."""
    match = re.fullmatch(r"(\d*)-(\d*)", text)
    return f"{match[1] or 0}-{match[2] or _LAST_CPU}" if match else text


def read_effort(text: str) -> str:
    """Read a level of effort; default is the template's own."""
    return "" if text == "default" else text


def read_poll(text: str) -> int:
    """Read 1 as the default; other values, such as 0 for no polling, are unchanged."""
    return _POLLING if text == "1" else int(text)


def read_shares(text: str) -> tuple[float, ...]:
    """Read numbers separated by commas or slashes."""
    shares = tuple(float(part) for part in re.split("[,/]", text))
    if not all(map(math.isfinite, shares)):
        raise ValueError(f"must be finite numbers, but got '{text}'")
    return shares


def read_range(text: str) -> tuple[int, ...]:
    """Read a first and a last number."""
    numbers = tuple(int(part) for part in text.split(","))
    if len(numbers) != 2:
        raise ValueError("must be two numbers, START END")
    return numbers


def read_freq_scale(text: str) -> float:
    """Read a factor of the context as the scale of frequencies."""
    factor = float(text)
    return 1 / factor if factor else math.inf


def read_strict(text: str) -> bool:
    """Read a boolean, or a number: any but 0 is true."""
    return int(text) != 0 if re.fullmatch(r"[-+]?\d+", text) else read_boolean(text)


def read_timeout(text: str) -> float:
    """Read seconds; a negative number is no limit, which is 68 years here."""
    seconds = float(text)
    return float(INT32_MAX) if seconds < 0 else seconds


def read_predict(text: str) -> int:
    """Read a number of tokens; -2, until the context is full, is what every -1 means."""
    return -1 if text == "-2" else int(text)


def read_interval(text: str) -> float:
    """Read seconds; -1 and 0 are never, which is a day here."""
    return 86400.0 if float(text) <= 0 else float(text)


def read_newlines(text: str) -> str:
    r"""Read a text in which \n stands for a newline, as api_like_OAI.py reads it."""
    return text.replace("\\n", "\n")


def read_names(text: str) -> tuple[str, ...]:
    """Read names separated by semicolons."""
    return tuple(filter(None, (part.strip() for part in text.split(";"))))


def read_one(text: str) -> tuple[str, ...]:
    """Read the whole text as one item."""
    return (text,)


def read_breakers(text: str) -> tuple[str, ...]:
    """Read one sequence breaker; none is an empty one, which nothing ever matches."""
    return ("" if text == "none" else text,)


def read_bias(text: str) -> tuple[tuple[int | str, float], ...]:
    """Read TOKEN_ID(+/-)BIAS."""
    match = re.fullmatch(r"(.+?)([+-](?:inf|\d+(?:\.\d*)?))", text, re.DOTALL)
    if match is None or match[2] == "+inf":
        raise ValueError("must be TOKEN_ID(+/-)BIAS as in 15043-1 or 15043-inf")
    token = int(match[1]) if match[1].isdigit() else match[1]
    return ((token, float(match[2])),)


class NamedFileError(ValueError):
    """The file that an argument names cannot be used; the command line itself is valid."""


def read_file(text: str) -> str:
    """Read the file of that name."""
    try:
        return read_named_text(Path(text))
    except OSError as error:
        raise NamedFileError(f"cannot read {text}: {error.strerror}") from error


def read_object_file(text: str) -> str:
    """Read the file of that name, a JSON object."""
    content = read_file(text)
    try:
        return read_object(content)
    except ValueError as error:
        raise NamedFileError(f"{text}: {error}") from error


def read_boolean(text: str) -> bool:
    """Read a boolean in any of llama-server's spellings."""
    lowered = text.lower()
    if lowered in ("1", "true", "on", "yes", "enabled"):
        return True
    if lowered in ("0", "false", "off", "no", "disabled"):
        return False
    raise ValueError("must be one of on, off, true, false, 1, 0")


_LAST_CPU = 511
"""llama.cpp's GGML_MAX_N_THREADS - 1."""
_POLLING = 50
"""llama.cpp's own polling level."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def unescape(text: str) -> str:
    r"""Replace \n, \r, \t, \', \", \\ and \xHH, as llama-server does with stops and breakers."""

    def replaced(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _ESCAPES[match[2]]

    return re.sub(r"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))", replaced, text)
