"""Whether two servers have given the same tokens."""

from typing import Any


def alike(ours: list[list[int]], theirs: list[list[int]]) -> dict[str, Any]:
    """Count the texts that are equal to the token, and where the others part."""
    parts = []
    for one, other in zip(ours, theirs, strict=True):
        pairs = enumerate(zip(one, other, strict=False))
        parts.append(next((n for n, (a, b) in pairs if a != b), min(len(one), len(other))))
    n_equal = sum(one == other for one, other in zip(ours, theirs, strict=True))
    return {
        "texts": len(ours),
        "equal": n_equal,
        "tokens": len(ours[0]),
        "first_parting": min(parts),
    }
