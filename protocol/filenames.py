"""Checks names that clients give to files, with the rules of llama.cpp's `fs_validate_filename`.

`readable` is for names that the host gives, which may have any bytes.
"""

import os
from pathlib import Path

_MAX_BYTES = 255
"""Of a name in UTF-8, as in llama.cpp; Linux's file systems take no longer one."""
_FORBIDDEN = frozenset('/\\:*?"<>|') | frozenset("\uff0e\u2215\u2216\ufffd\ufeff")
"""Separators, what Windows forbids, and characters that look like `.`, `/` or `\\`."""


def is_valid_filename(name: str) -> bool:
    """Return whether a name stays within its folder and is valid on every system."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False  # a lone surrogate
    if not 0 < n_bytes <= _MAX_BYTES or ".." in name:
        return False
    if name[0] == " " or name[-1] in " .":
        return False
    return not any(_is_control(char) or char in _FORBIDDEN for char in name)


def is_file(path: str | Path) -> bool:
    """Return whether a path is a file: false where that cannot be known, as in a closed folder."""
    return os.path.isfile(path)  # noqa: PTH113 - `Path.is_file` raises PermissionError


def is_dir(path: str | Path) -> bool:
    """Return whether a path is a folder, as `is_file`."""
    return os.path.isdir(path)  # noqa: PTH112


def expanded(path: str) -> Path:
    """Replace a `~` at the beginning; that of an unknown user stays, as in a shell."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - `Path.expanduser` raises RuntimeError


def readable(path: str) -> str:
    """Return a path as text that JSON can contain; what is no UTF-8 is replaced."""
    return os.fsencode(path).decode(errors="replace")


def _is_control(char: str) -> bool:
    return char <= "\x1f" or "\x7f" <= char <= "\x9f"
