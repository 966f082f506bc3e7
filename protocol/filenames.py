"""Which names a client may give to a file: llama.cpp's `fs_validate_filename`, rule by rule."""

_MAX_BYTES = 255
_FORBIDDEN = frozenset('/\\:*?"<>|') | frozenset("\uff0e\u2215\u2216\ufffd\ufeff")
"""Separators, what Windows forbids, and characters that look like `.`, `/` or `\\`."""


def is_valid_filename(name: str) -> bool:
    """Tell whether a name stays within its folder and is the same file on every system."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False  # half of a surrogate pair
    if not 0 < n_bytes <= _MAX_BYTES or ".." in name:
        return False
    if name[0] == " " or name[-1] in " .":
        return False
    return not any(_is_control(char) or char in _FORBIDDEN for char in name)


def _is_control(char: str) -> bool:
    return char <= "\x1f" or "\x7f" <= char <= "\x9f"
