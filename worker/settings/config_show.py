"""`llamapool config show`: the resolved configuration as TOML, with the source of each value."""

import json
import math
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, cast

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.wire.schema import FieldRow, describe

_SECRET = frozenset({"api_key", "api_key_admin", "hf_token"})
_HIDDEN = "(hidden)"
_COMMENT_AT = 44
"""Column of the comments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Sources of the values."""

    flags: Mapping[str, str]
    """Field to the flag or variable that set it."""
    path: Path | None
    """The configuration file."""
    places: Mapping[str, int]
    """Dotted key in that file to its line, as `places_in` finds them."""
    workers: tuple[int, ...]
    """Index of the `[[worker]]` table of each resolved worker."""


def toml(pool: PoolConfig, origins: Origins | None) -> str:
    """Write a resolved configuration as TOML; with `origins` each line gets its source."""
    lines = _keys(pool, "", "", origins)
    lines += _table("[log]", pool.log, "log", "log", origins)
    lines += _table("[gateway]", pool.gateway, "gateway", "gateway", origins)
    for index, worker in enumerate(pool.worker):
        number = origins.workers[index] if origins is not None else index
        path = f"worker.{number}"
        lines += _table("[[worker]]", worker, "worker", path, origins)
        lines += _table(
            "[worker.sampling]", worker.sampling, "sampling", f"{path}.sampling", origins
        )
    return "\n".join(lines).strip() + "\n"


def numbers(pool: PoolConfig) -> tuple[int, ...]:
    """Return, for each worker that will run, the index of its table."""
    tables = pool.worker or (WorkerConfig(),)
    return tuple(i for i, table in enumerate(tables) for _ in range(table.count))


def places_in(text: str) -> dict[str, int]:
    """Find the line of every key of a TOML text: `gateway.port`, `worker.0.sampling.top_k`."""
    found: dict[str, int] = {}
    table, n_workers = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*(\[\[?)\s*([\w.]+)\s*\]", line):
            table = match[2]
            n_workers += match[1] == "[["
            table = re.sub(r"^worker\b", f"worker.{n_workers - 1}", table)
        elif match := re.match(r"\s*([\w.]+)\s*=", line):
            found.setdefault(f"{table}.{match[1]}".lstrip("."), number)
    return found


def _table(title: str, part: Any, section: str, path: str, origins: Origins | None) -> list[str]:
    return ["", title, *_keys(part, section, path, origins)]


def _keys(part: Any, section: str, path: str, origins: Origins | None) -> list[str]:
    lines = []
    for row in describe(cast(Hashable, type(part))):
        value = getattr(part, row.name)
        is_table = is_dataclass(value) or (
            isinstance(value, tuple) and any(map(is_dataclass, value))
        )
        if value is None or is_table:
            continue
        line = f"{row.name} = {_value(_HIDDEN if row.name in _SECRET and value else value)}"
        if origins is not None:
            origin = _origin(row, value, section, path, origins)
            line = f"{line:<{_COMMENT_AT}} # {origin}"
        lines.append(line)
    return lines


def _origin(row: FieldRow, value: Any, section: str, path: str, origins: Origins) -> str:
    if name := origins.flags.get(f"{section}.{row.name}"):
        return name
    for key in (row.name, *row.spec.aliases):
        if line := origins.places.get(f"{path}.{key}".lstrip(".")):
            return f"{origins.path}:{line}"
    return "default" if value == row.default else "worked out"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}"
    return json.dumps(value)
