"""Files with a strength: `FNAME` or `FNAME:SCALE`, as `--lora` and `--control-vector` take them."""

import math
from typing import NamedTuple


class ScaledFile(NamedTuple):
    """A file and how strongly it is applied."""

    path: str
    scale: float


def split_scale(text: str) -> ScaledFile:
    """Parse `FNAME[:SCALE]`; the default scale is 1, and other colons belong to the name."""
    path, colon, scale = text.rpartition(":")
    if not colon or not path:
        return ScaledFile(text, 1.0)
    try:
        value = float(scale)
    except ValueError:
        return ScaledFile(text, 1.0)
    return ScaledFile(path, value) if math.isfinite(value) else ScaledFile(text, 1.0)


def join_scale(file: ScaledFile) -> str:
    """Format it so that `split_scale` parses it."""
    return f"{file.path}:{file.scale!r}"
