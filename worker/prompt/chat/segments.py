"""Difference of two rendered prompts, marks kept whole: llama.cpp's `calculate_diff_split`."""

from collections.abc import Sequence

from worker.engine.cache.prefix import common_prefix

_CLOSERS = {"<": ">", "[": "]"}


def split_markers(text: str) -> list[str]:
    """Split a text into marks (`<…>`, `[…]`) and what stands between them."""
    parts: list[str] = []
    start, closer = 0, ""
    for i, char in enumerate(text):
        if not closer and char in _CLOSERS:
            if start < i:
                parts.append(text[start:i])
            start, closer = i, _CLOSERS[char]
        elif closer and char == closer:
            parts.append(text[start : i + 1])
            start, closer = i + 1, ""
    if start < len(text):
        parts.append(text[start:])
    return parts


def difference(left: str, right: str) -> tuple[str, str]:
    """Return what each of two texts has between their common beginning and end."""
    if right.startswith(left):
        return "", right[len(left) :]
    if left.startswith(right):
        return left[len(right) :], ""
    ours, theirs = split_markers(left), split_markers(right)
    head = common_prefix(ours, theirs)
    ours, theirs = ours[head:], theirs[head:]
    tail = common_prefix(ours[::-1], theirs[::-1])
    if tail:
        ours, theirs = ours[:-tail], theirs[:-tail]
    a, b = "".join(ours), "".join(theirs)
    if _ends_in_text(ours[-1:]) and _ends_in_text(theirs[-1:]):
        n = common_prefix(a[::-1], b[::-1])
        a, b = a[: len(a) - n], b[: len(b) - n]
    if _ends_in_text(ours[:1]) and _ends_in_text(theirs[:1]):
        n = common_prefix(a, b)
        a, b = a[n:], b[n:]
    return a, b


def _ends_in_text(parts: Sequence[str]) -> bool:
    return bool(parts) and parts[0][0] not in _CLOSERS
