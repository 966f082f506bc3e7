"""A model's file on disk: its parts, if it is split, and their sizes."""

import re
from pathlib import Path


def paths_of(path: Path) -> list[Path]:
    """Return the paths of all parts of a file, whether they exist or not."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if match is None:
        return [path]
    names = [f"{match[1]}-{i:05d}-of-{match[2]}.gguf" for i in range(1, int(match[2]) + 1)]
    return [path.with_name(name) for name in names]


def parts(path: Path) -> tuple[list[int], str]:
    """Return the sizes of all parts of a split file, and the first missing part."""
    paths = paths_of(path)
    if len(paths) == 1:
        return [path.stat().st_size], ""
    there = [one for one in paths if one.is_file()]
    lacking = next((one.name for one in paths if not one.is_file()), "")
    return [one.stat().st_size for one in there], lacking


def weigh(path: str) -> int:
    """Return the bytes of a model's file with all its parts; 0 if one of them is missing."""
    try:
        sizes, lacking = parts(Path(path))
    except OSError:
        return 0
    return 0 if lacking else sum(sizes)
