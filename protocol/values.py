"""Readers of the structured request fields: samplers, stops, biases, seeds, grammars.

Each takes the decoded JSON value and returns the field's type, or raises `ValueError` with the
reason; `protocol/schema.py` adds the name of the field.
"""

import math
from collections.abc import Mapping
from typing import Any

from protocol.schema import json_type

SAMPLER_NAMES: Mapping[str, str] = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
    "tfs_z": "f",
    "infill": "i",
    "adaptive_p": "a",
}
"""Canonical sampler names and their one-letter forms (llama.cpp common/sampling.cpp; `f`: 2024)."""

_SAMPLER_ALIASES: Mapping[str, str] = {
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "top-n-sigma": "top_n_sigma",
    "typical-p": "typ_p",
    "typical_p": "typ_p",
    "typical": "typ_p",
    "typ-p": "typ_p",
    "typ": "typ_p",
    "min-p": "min_p",
    "temp": "temperature",
    "tfs-z": "tfs_z",
    "tfs": "tfs_z",
    "adaptive-p": "adaptive_p",
}

GUESSERS = (
    *("none", "draft-simple", "ngram-simple", "ngram-cache"),
    *("ngram-map-k", "ngram-map-k4v", "ngram-mod"),
)
"""Who may guess ahead (llama.cpp common/speculative.cpp, as far as it is here)."""

DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)


def read_guessers(value: Any) -> tuple[str, ...]:
    """Read who may guess ahead: a text with commas, or a list; `none` stands for nobody at all."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError(f"type must be string, but is {json_type(value)}")
    for name in names:
        if name not in GUESSERS:
            raise ValueError(f"must be among {', '.join(GUESSERS)}, but got {name!r:.80}")
    return ("none",) if "none" in names else tuple(dict.fromkeys(names))


def read_samplers(value: Any) -> tuple[str, ...]:
    """Read a list of names, a `;`-separated string of names, or a string of one-letter forms."""
    letters = {letter: name for name, letter in SAMPLER_NAMES.items()}
    if isinstance(value, str):
        if ";" in value or _sampler(value) is not None:
            value = [part for part in value.split(";") if part]
        else:
            unknown = [letter for letter in value if letter not in letters]
            if unknown:
                raise ValueError(f"unknown sampler '{unknown[0]}'")
            return tuple(letters[letter] for letter in value)
    if not isinstance(value, list | tuple):
        raise ValueError(f"type must be array or string, but is {json_type(value)}")
    names = []
    for item in value:
        name = _sampler(item) if isinstance(item, str) else None
        if name is None:
            known = ", ".join(SAMPLER_NAMES)
            raise ValueError(f"unknown sampler {item!r}; known are {known}")
        names.append(name)
    return tuple(names)


def _sampler(name: str) -> str | None:
    lowered = name.strip().lower()
    return lowered if lowered in SAMPLER_NAMES else _SAMPLER_ALIASES.get(lowered)


def read_chat_format(value: Any) -> str:
    """Read the parser of an answer: a chat's is its template's, and any other text has none."""
    if value not in ("", "Content-only", 0) or isinstance(value, bool):
        raise ValueError("choosing the chat parser is not supported yet")
    return "Content-only"


def read_stop(value: Any) -> tuple[str, ...]:
    """Read one stop string or a list of them; empty strings are skipped as llama-server does."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a string or an array of strings")
    if len(items) > _MAX_STOPS or any(len(item) > _MAX_STOP_CHARS for item in items):
        raise ValueError(f"at most {_MAX_STOPS} strings of {_MAX_STOP_CHARS} characters each")
    return tuple(item for item in items if item)


_MAX_STOPS = 128
_MAX_STOP_CHARS = 1024
_MAX_BIASES = 8192
_MAX_GRAMMAR_CHARS = 256 * 1024


def read_logit_bias(value: Any) -> tuple[tuple[int | str, float], ...]:
    """Read `[[token or text, bias or false], …]` or `{"token or text": bias or false}`.

    `false` is -inf (never). Text stands for each of its tokens; the worker resolves it.
    """
    if isinstance(value, Mapping):
        pairs = [(_key(key), bias) for key, bias in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [_pair(item) for item in value]
    else:
        raise ValueError(f"type must be array or object, but is {json_type(value)}")
    if len(pairs) > _MAX_BIASES:
        raise ValueError(f"at most {_MAX_BIASES} entries")
    return tuple((token, _bias(bias)) for token, bias in pairs)


def _key(key: str) -> int | str:
    return int(key) if key.isascii() and key.isdigit() else key


def _pair(item: Any) -> tuple[int | str, Any]:
    if isinstance(item, Mapping) and set(item) == {"id", "bias"}:
        item = (item["id"], item["bias"])  # the form in which generation_settings echoes it
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise ValueError("each entry must be a pair of token and bias")
    token, bias = item
    if isinstance(token, bool) or not isinstance(token, int | str):
        raise ValueError(f"a token must be a number or a string, but is {json_type(token)}")
    return token, bias


def _bias(bias: Any) -> float:
    if bias is False or bias is None:
        return -math.inf
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise ValueError(f"a bias must be a number or false, but is {json_type(bias)}")
    if math.isnan(bias) or bias == math.inf:
        raise ValueError(f"a bias must be finite or false, but got {bias}")
    return float(bias)


def read_seed(value: Any) -> int:
    """Read a seed; anything wider than 32 bits is folded, -1 becomes `UNSET_SEED`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"type must be number, but is {json_type(value)}")
    if not -(2**63) <= value < 2**64:
        raise ValueError("must fit into 64 bits")
    return value & 0xFFFFFFFF


def read_breakers(value: Any) -> tuple[str, ...]:
    """Read the DRY sequence breakers: at least one string."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be an array of strings")
    if not value:
        raise ValueError("Error: dry_sequence_breakers must be a non-empty array of strings")
    if len(value) > _MAX_STOPS or any(len(item) > _MAX_STOP_CHARS for item in value):
        raise ValueError(f"at most {_MAX_STOPS} strings of {_MAX_STOP_CHARS} characters each")
    return tuple(value)


def read_penalty_prompt(value: Any) -> str | tuple[int, ...]:
    """Read the text or tokens that stand for the prompt in the penalty window."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return tuple(value)
    raise ValueError("must be a string or an array of tokens")


def read_lora(value: Any) -> tuple[tuple[int, float], ...]:
    """Read `[{"id": 0, "scale": 1.0}, …]`; adapters that are not named get the scale 0."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"type must be array, but is {json_type(value)}")
    return tuple(_lora(item) for item in value)


def _lora(item: Any) -> tuple[int, float]:
    number, scale = None, None
    if isinstance(item, Mapping):
        number, scale = item.get("id"), item.get("scale", 0.0)
    elif isinstance(item, list | tuple) and len(item) == 2:
        number, scale = item  # as the wire writes it
    if type(number) is not int or number < 0 or type(scale) not in (int, float):
        raise ValueError("each entry must be an object with 'id' and 'scale'")
    if not math.isfinite(float(scale or 0)):
        raise ValueError(f"a scale must be finite, but got {scale}")
    return number, float(scale or 0)


def read_grammar(value: Any) -> str:
    """Read a GBNF text within its size limit."""
    if not isinstance(value, str):
        raise ValueError(f"type must be string, but is {json_type(value)}")
    if len(value) > _MAX_GRAMMAR_CHARS:
        raise ValueError(f"longer than {_MAX_GRAMMAR_CHARS} characters")
    return value
