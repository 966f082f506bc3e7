"""The groups of the corpus, in the order in which they are sent."""

from collections.abc import Callable

from tests.hostile.case import HostileCase, Target
from tests.hostile.corpus import (
    encodings,
    grammars,
    headers,
    lengths,
    media,
    nesting,
    numbers,
    raw_http,
    schemas,
    slot_files,
    tokens,
    tools,
)

GROUPS: dict[str, Callable[[Target], list[HostileCase]]] = {
    "numbers": numbers.cases,
    "lengths": lengths.cases,
    "nesting": nesting.cases,
    "encodings": encodings.cases,
    "grammars": grammars.cases,
    "schemas": schemas.cases,
    "tools": tools.cases,
    "tokens": tokens.cases,
    "media": media.cases,
    "slot_files": slot_files.cases,
    "headers": headers.cases,
    "raw_http": raw_http.cases,
}
