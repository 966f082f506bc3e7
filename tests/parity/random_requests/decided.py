"""What is answered in another way on purpose: see docs/using/compatibility.md."""

import re
from collections.abc import Mapping
from typing import Any

_LIBRARY = re.compile(r"\[json\.exception\.[^]]*\] |Failed to parse messages: ")
"""Names of a C++ library's exceptions."""
_NOWHERE = re.compile(r"Invalid slot ID|Prompt contains invalid tokens")
"""Words of a 400 to a number that does not exist."""
_WRONG = re.compile(r"must be|JSON schema|no adapter has the id")
"""Words of a 400 to a wrong type or value."""


def is_refusal(theirs: Mapping[str, Any], ours: Mapping[str, Any], *, may_be_wrong: bool) -> bool:
    """Return whether it is a client's mistake that llama-server overlooks, or takes for its own.

    `may_be_wrong`: values of the request may be wrong on purpose; else all are right.
    """
    if not 400 <= ours["status"] < 500:
        return False
    told = error(ours)
    words = str(told[1]) if isinstance(told, list) else ""
    is_named = _NOWHERE.search(words) or (may_be_wrong and _WRONG.search(words))
    return theirs["status"] >= 500 or bool(is_named)


def error(answer: Mapping[str, Any]) -> Any:
    """Return the type and the words of an error."""
    body = answer["body"]
    found = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(found, dict):
        return found
    return [found.get("type"), _LIBRARY.sub("", str(found.get("message")))]


def as_today(path: str, body: Any) -> Any:
    """Put the object of 2024, for one text, into the array of today."""
    is_old = path == "/embedding" and isinstance(body, dict) and "embedding" in body
    if not is_old:
        return body
    vectors = body["embedding"]
    is_pooled = not isinstance(vectors, list)
    return [{**body, "embedding": [vectors] if is_pooled else vectors}]
