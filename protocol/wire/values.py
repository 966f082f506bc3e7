"""Readers of the structured request fields: samplers, stops, biases, seeds, grammars.

Each takes the decoded JSON value and returns the field's type, or raises `ValueError` with the
reason; `protocol/wire/schema.py` adds the name of the field.
"""

import math
from collections.abc import Mapping
from typing import Any

from protocol.wire.schema import json_type
from protocol.wire.shapes import (
    FLOAT32_MAX,
    INT32_MAX,
    Clamp,
    Either,
    Entries,
    Fields,
    Free,
    Items,
    Number,
    TextShape,
    Token,
)

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

SPECULATIVE_TYPES = (
    *("none", "draft-simple", "ngram-simple", "ngram-cache"),
    *("ngram-map-k", "ngram-map-k4v", "ngram-mod"),
)
"""Methods of speculative decoding: those of llama.cpp's common/speculative.cpp that exist here."""

_NAME = TextShape(max_length=64)
SEED = Number(low=-(2**63), high=2**64 - 1)
SAMPLERS = Either((TextShape(max_length=256), Items(_NAME, 32)))
SPECULATIVE_TYPE_LIST = Either((TextShape(max_length=256), Items(_NAME, 16)))
STOPS = Either(
    (TextShape(max_length="stop_chars"), Items(TextShape(max_length="stop_chars"), "stops"))
)
TAGS = Either((TextShape(max_length=4096), Items(TextShape(max_length=4096), 16)))
BREAKERS = Items(TextShape(max_length=256), 32)
GRAMMAR = TextShape(max_length="grammar_bytes")
BIASES = Either(
    (
        Items(Free(2, 256), "biases"),
        Entries(Number(low=-FLOAT32_MAX, high=FLOAT32_MAX, clamps=Clamp.BOTH), "biases"),
    )
)
MAX_SCALE = 100.0
"""Of an adapter. With 1e38 its layers overflow, and what is not a number stays in the cache, which
all sequences share: every later answer of the worker was empty."""
PENALTY_PROMPT = Either((TextShape(max_length="slot_bytes"), Items(Token(), "n_ctx")))
ADAPTERS = Items(
    Fields(
        {
            "id": Number(low=0, high=INT32_MAX),
            "scale": Number(low=-MAX_SCALE, high=MAX_SCALE, clamps=Clamp.BOTH, whole=False),
        }
    ),
    "adapters",
)
"""The bounds of the structured fields."""

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


def read_speculative_types(value: Any) -> tuple[str, ...]:
    """Read methods of speculative decoding: a text with commas, or a list; `none` turns all off."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError(f"type must be string, but is {json_type(value)}")
    for name in names:
        if name not in SPECULATIVE_TYPES:
            raise ValueError(f"must be among {', '.join(SPECULATIVE_TYPES)}, but got {name!r:.80}")
    return ("none",) if "none" in names else tuple(dict.fromkeys(names))


def read_samplers(value: Any) -> tuple[str, ...]:
    """Read a list of names, a `;`-separated string of names, or a string of one-letter forms."""
    if unknown := unknown_samplers(value):
        known = ", ".join(SAMPLER_NAMES)
        raise ValueError(f"unknown sampler {unknown[0]!r:.80}; known are {known}")
    return take_samplers(value)


def take_samplers(value: Any) -> tuple[str, ...]:
    """Read the same of a request: llama-server goes on without a sampler that it does not know."""
    return tuple(name for _, name in _found_samplers(value) if name is not None)


def unknown_samplers(value: Any) -> list[str]:
    """List what such a value names and is no sampler."""
    return [written for written, name in _found_samplers(value) if name is None]


def _found_samplers(value: Any) -> list[tuple[str, str | None]]:
    """Pair what was written with the sampler that it names."""
    letters = {letter: name for name, letter in SAMPLER_NAMES.items()}
    if isinstance(value, str):
        if ";" not in value and _sampler(value) is None:
            return [(letter, letters.get(letter)) for letter in value]
        value = [part for part in value.split(";") if part]
    if not isinstance(value, list | tuple):
        raise ValueError(f"type must be array or string, but is {json_type(value)}")
    for item in value:
        if not isinstance(item, str):
            raise ValueError(f"each must be a string, but is {json_type(item)}")
    return [(item, _sampler(item)) for item in value]


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
    return tuple(item for item in items if item)


_MAX_DIGITS = 18
"""A longer number is no token of any vocabulary, and Python refuses to read thousands of digits."""


def read_logit_bias(value: Any) -> tuple[tuple[int | str, float], ...]:
    """Read `[[token or text, bias or false], …]` or `{"token or text": bias or false}`.

    `false` is -inf (never). Text stands for each of its tokens; the worker resolves it.
    """
    return tuple(_entry(item) for item in _entries(value))


def take_logit_bias(value: Any) -> tuple[tuple[int | str, float], ...]:
    """Read the same of a request, without the entries that llama-server skips.

    They are those of another shape and those whose bias is neither a number nor false. A fraction
    for a token has no meaning and is refused.
    """
    if (pairs := _plain_pairs(value)) is not None:
        return pairs
    taken = []
    for item in _entries(value):
        if not isinstance(item, list | tuple) or len(item) != 2:
            continue
        token, bias = item
        if isinstance(token, float):
            if token != int(token):
                raise ValueError(f"a token must be a whole number or a text, but got {token}")
            token = int(token)
        if bias is not True and isinstance(bias, int | float | None) and type(token) in (int, str):
            taken.append(_entry((token, bias)))
    return tuple(taken)


def _plain_pairs(value: Any) -> tuple[tuple[int | str, float], ...] | None:
    """Return pairs of a token and a number, all checked at once; None if there is anything else."""
    if type(value) is not list or not value or not {list}.issuperset(map(type, value)):
        return None
    if not {2}.issuperset(map(len, value)):
        return None
    tokens, biases = zip(*value, strict=True)
    if not {int}.issuperset(map(type, tokens)) or not {int, float}.issuperset(map(type, biases)):
        return None
    if not all(-FLOAT32_MAX <= bias <= FLOAT32_MAX for bias in biases):
        return None
    return tuple(zip(tokens, map(float, biases), strict=True))


def _entries(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [(_key(key), bias) for key, bias in value.items()]
    if isinstance(value, list | tuple):
        return [_echoed(item) for item in value]
    raise ValueError(f"type must be array or object, but is {json_type(value)}")


def _key(key: str) -> int | str:
    is_number = key.isascii() and key.isdigit()
    return int(key[:_MAX_DIGITS]) if is_number else key


def _echoed(item: Any) -> Any:
    """Turn an entry as generation_settings echoes it into a pair."""
    is_echo = isinstance(item, Mapping) and set(item) == {"token", "bias"}
    if is_echo or (isinstance(item, Mapping) and set(item) == {"id", "bias"}):
        return item.get("token", item.get("id")), item["bias"]
    return item


def _entry(item: Any) -> tuple[int | str, float]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise ValueError("each entry must be a pair of token and bias")
    token, bias = item
    is_plain = type(token) in (int, str) and type(bias) in (int, float)
    if is_plain and -FLOAT32_MAX <= bias <= FLOAT32_MAX:
        return token, bias  # there may be thousands
    if isinstance(token, bool) or not isinstance(token, int | str):
        raise ValueError(f"a token must be a whole number or a text, but is {json_type(token)}")
    if bias is False or bias is None:
        return token, -math.inf
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        raise ValueError(f"a bias must be a number or false, but is {json_type(bias)}")
    if math.isnan(bias) or bias == math.inf:
        raise ValueError(f"a bias must be finite or false, but got {bias}")
    return token, -math.inf if bias == -math.inf else min(max(bias, -FLOAT32_MAX), FLOAT32_MAX)


def read_seed(value: Any) -> int:
    """Read a seed; anything wider than 32 bits is folded, -1 becomes `UNSET_SEED`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"type must be number, but is {json_type(value)}")
    if not -(2**63) <= value < 2**64:
        raise ValueError("must fit into 64 bits")
    return int(value) & 0xFFFFFFFF


def read_breakers(value: Any) -> tuple[str, ...]:
    """Read the DRY sequence breakers: at least one string."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be an array of strings")
    if not value:
        raise ValueError("Error: dry_sequence_breakers must be a non-empty array of strings")
    return tuple(value)


def read_penalty_prompt(value: Any) -> str | tuple[int, ...]:
    """Read the text or tokens that stand for the prompt in the penalty window."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return tuple(value)
    raise ValueError("must be a string or an array of tokens")


def read_lora(value: Any) -> tuple[tuple[int, float], ...]:
    """Read `[{"id": 0, "scale": 1.0}, …]`; adapters that are not named get the scale 0.

    Of several scales of one adapter the last one holds.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"type must be array, but is {json_type(value)}")
    return tuple(sorted(dict(_lora(item) for item in value).items()))


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
    return number, min(max(float(scale or 0), -MAX_SCALE), MAX_SCALE)


def read_grammar(value: Any) -> str:
    """Read a GBNF text."""
    if not isinstance(value, str):
        raise ValueError(f"type must be string, but is {json_type(value)}")
    return value
