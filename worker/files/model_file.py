"""A model's file on disk: its parts, if it is split, and their sizes."""

import re
from pathlib import Path
from typing import NamedTuple

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class PartName(NamedTuple):
    """Name of one part of a split file: `STEM-00001-of-00003.gguf`."""

    stem: str
    number: int
    n_parts: int


def part_name(name: str) -> PartName | None:
    """Read the name of a file; None if the file is not part of a split one."""
    match = _PART.fullmatch(name)
    return None if match is None else PartName(match[1], int(match[2]), int(match[3]))


def paths_of(path: Path) -> list[Path]:
    """Return the paths of all parts of a file, whether they exist or not."""
    if (part := part_name(path.name)) is None:
        return [path]
    numbers = range(1, part.n_parts + 1)
    return [path.with_name(f"{part.stem}-{i:05d}-of-{part.n_parts:05d}.gguf") for i in numbers]


def parts(path: Path) -> tuple[list[int], str]:
    """Return the sizes of all parts of a split file, and the first missing part."""
    paths = paths_of(path)
    if len(paths) == 1:
        return [path.stat().st_size], ""
    there = [file for file in paths if file.is_file()]
    lacking = next((file.name for file in paths if not file.is_file()), "")
    return [file.stat().st_size for file in there], lacking


def weigh(path: str) -> int:
    """Return the bytes of a model's file with all its parts; 0 if one of them is missing."""
    try:
        sizes, lacking = parts(Path(path))
    except OSError:
        return 0
    return 0 if lacking else sum(sizes)
