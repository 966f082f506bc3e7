"""Where one answer lacks what another has."""

from collections.abc import Iterator
from typing import Any

from protocol.schema import json_type


def missing(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Name every key of theirs that ours lacks, and every value of another JSON type.

    More keys than theirs are welcome. Of arrays the first item stands for all.
    """
    if json_type(theirs) != json_type(ours):
        yield f"{path or '.'}: {json_type(theirs)} became {json_type(ours)}"
    elif isinstance(theirs, dict):
        for key, value in theirs.items():
            if key in ours:
                yield from missing(value, ours[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}: missing"
    elif isinstance(theirs, list) and theirs:
        if not ours:
            yield f"{path}[]: empty"
        else:
            yield from missing(theirs[0], ours[0], f"{path}[0]")
            yield from missing(theirs[-1], ours[-1], f"{path}[-1]")
