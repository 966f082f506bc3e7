"""Converts one schema to a grammar; the last few are cached."""

import functools
import json
from typing import Any

from protocol.errors import InvalidRequest
from worker.grammar.json_schema.builder import GrammarBuilder
from worker.grammar.limits import MAX_SCHEMA_CHARS

_CACHED = 32
"""Schemas whose grammar is kept."""


def to_gbnf(schema: Any, *, param: str = "json_schema") -> str:
    """Return the grammar of all JSON texts that a schema (a decoded value) allows."""
    builder = GrammarBuilder(param=param)
    builder.add_schema(schema, "root")
    return builder.text()


@functools.lru_cache(maxsize=_CACHED)
def text_to_gbnf(text: str, *, param: str = "json_schema") -> str:
    """Return the grammar of a schema that came as text."""
    return to_gbnf(parse_schema(text, param=param), param=param)


def parse_schema(text: str, *, param: str) -> Any:
    """Decode a schema that came as text; `{}` is any object."""
    if len(text) > MAX_SCHEMA_CHARS:
        message = f"Field '{param}': longer than {MAX_SCHEMA_CHARS} characters"
        raise InvalidRequest(message, param=param)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"Field '{param}': not JSON", param=param) from error
    return {"type": "object"} if schema == {} else schema
