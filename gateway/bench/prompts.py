"""Reads prompts from a file, in the forms that other load generators read."""

from pathlib import Path

import orjson

_FIELDS = ("prompt", "text", "text_input")


def prompts_in(path: Path) -> tuple[str, ...]:
    """Read one prompt a line, of `.jsonl` a field of each object; raises `ValueError`."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} holds no prompts")
    if path.suffix != ".jsonl":
        return tuple(lines)
    return tuple(_prompt(path, number, line) for number, line in enumerate(lines, 1))


def _prompt(path: Path, number: int, line: str) -> str:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path}:{number}: {error}") from error
    values = [found.get(name) for name in _FIELDS] if isinstance(found, dict) else []
    for value in values:
        if isinstance(value, str):
            return value
    raise ValueError(f"{path}:{number}: needs a string in one of {', '.join(_FIELDS)}")
