"""Where we answer differently from llama-server, and why."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One difference that is meant."""

    why: str
    status: int = 0
    """Our status, where it differs."""
    message: bool = False
    """Our error message differs."""
    lacks: frozenset[str] = frozenset()
    """What ours lacks, as `tests/parity/compare.py` says it."""


_TYPES = "a wrong type is refused; llama-server takes the default silently (house rule: never)"
_WORDS = "the same complaint without the names of a C++ library's exceptions"
_LATER = "the endpoint is not there yet, so naming the flag that opens it would mislead"

DECISIONS: Mapping[str, Decision] = {
    "stop number": Decision(why=_TYPES, status=400),
    "grammar number": Decision(why=_TYPES, status=400),
    "id_slot string": Decision(why=_TYPES, status=400),
    "top_k string": Decision(why=_WORDS, message=True),
    "stream string": Decision(why=_WORDS, message=True),
    "no prompt": Decision(why=_WORDS, message=True),
    "bad JSON": Decision(
        why="the newer llama-server answers 400 too: it is the client's", status=400
    ),
    "empty body": Decision(why="the same", status=400),
    "bad grammar": Decision(why="the seeds' words: Failed to parse grammar", message=True),
    "repeat_penalty 0": Decision(why="limits are named as for every other field", message=True),
    "n too many": Decision(why="choices beyond the slots wait in the queue", status=200),
    "stream progress": Decision(
        why="llama-server lists a token 0 in chunks that carry none",
        lacks=frozenset({"[0].tokens[]: empty"}),
    ),
    "message stop": Decision(why="Anthropic's own word for it: stop_sequence"),
    "message no messages": Decision(why="it is the client's mistake", status=400),
    "response previous": Decision(why="we are not llama.cpp", message=True),
    "response no input": Decision(why="null is absent", message=True),
    "save without path": Decision(why=_LATER, message=True),
    "post props": Decision(why=_LATER, message=True),
}
