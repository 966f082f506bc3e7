"""Where one answer lacks what another has."""

import math
from collections.abc import Iterator
from typing import Any

from protocol.wire.schema import json_type


def missing(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Name every key of theirs that ours lacks, and every value of another JSON type.

    More keys than theirs are allowed. Of an array the first and the last item are compared.
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


def unequal(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Name every value of theirs that differs in ours; more keys are allowed."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            yield from unequal(value, ours.get(key), f"{path}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for i, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from unequal(one, other, f"{path}[{i}]")
    elif not _is_equal(theirs, ours):
        yield f"{path or '.'}: {theirs!r} became {ours!r}"


def _is_equal(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(theirs, ours, rel_tol=2e-3, abs_tol=1e-4)
    return bool(theirs == ours)
