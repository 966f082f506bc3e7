"""Where we answer differently from llama-server, and why."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One difference that is meant; with nothing but `why`, in a value that is not compared."""

    why: str
    status: int = 0
    """Our status, where it differs."""
    message: bool = False
    """Our error message differs."""
    values: bool = False
    """Our text, or another value, differs."""
    lacks: frozenset[str] = frozenset()
    """What ours lacks, as `tests/parity/compare.py` says it."""


_TYPES = "a wrong type is refused; llama-server takes the default silently"
_WORDS = "the same complaint without the names of a C++ library's exceptions"
_CLIENTS = "it is the client's mistake, so 400; llama-server says 500"

DECISIONS: Mapping[str, Decision] = {
    "stop number": Decision(why=_TYPES, status=400),
    "grammar number": Decision(why=_TYPES, status=400),
    "id_slot string": Decision(why=_TYPES, status=400),
    "no jinja: tools": Decision(why=_CLIENTS, status=400),
    "no jinja: a tool choice": Decision(why=_CLIENTS, status=400),
    "top_k string": Decision(why=_WORDS, message=True),
    "stream string": Decision(why=_WORDS, message=True),
    "no prompt": Decision(why=_WORDS, message=True),
    "bad JSON": Decision(
        why="the newer llama-server answers 400 too: it is the client's", status=400
    ),
    "empty body": Decision(why="as bad JSON: it is the client's mistake", status=400),
    "bad grammar": Decision(why="the words of 2023: Failed to parse grammar", message=True),
    "repeat_penalty 0": Decision(why="limits are named as for every other field", message=True),
    "n too many": Decision(why="choices beyond the slots wait in the queue", status=200),
    "stream progress": Decision(
        why="llama-server lists a token 0 in chunks that carry none",
        lacks=frozenset({"[0].tokens[]: empty"}),
    ),
    "message stop": Decision(why="Anthropic's own word for it: stop_sequence"),
    "message no messages": Decision(why="it is the client's mistake", status=400),
    "schema number": Decision(why="the field is named once", message=True),
    "schema unknown type": Decision(why="the field is named once", message=True),
    "schema and grammar": Decision(
        why="refused as in a chat; llama-server follows the grammar and drops the schema",
        status=400,
    ),
    "format string": Decision(why=_TYPES, status=400),
    "template tools": Decision(
        why="a template that cannot describe tools gets them as a system message", values=True
    ),
    "tokenize number": Decision(why=_CLIENTS, status=400),
    "tokenize null": Decision(why="null is absent", status=200),
    "adapters odd item": Decision(why=_TYPES, status=400),
    "vector old": Decision(
        why="one text gets the object of 2024, which old clients of this path read",
        lacks=frozenset({".: array became object"}),
    ),
    "vector null": Decision(why=_CLIENTS, status=400),
    "vector number": Decision(why=_CLIENTS, status=400),
    "vector object": Decision(why=_CLIENTS, status=400),
    "vector too long": Decision(why=_CLIENTS, status=400),
    "response previous": Decision(why="we are not llama.cpp", message=True),
    "response no input": Decision(why="null is absent", message=True),
}
