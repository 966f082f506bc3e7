"""Reads the text of a key file: TOML with one `[[key]]` table a key, or one key a line.

Pure. Every complaint names the line.
"""

import datetime as dt
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.keys.api_key import (
    EVERY_SCOPE,
    ApiKey,
    KeyLimits,
    KeyScope,
    PriorityClass,
    digest,
    plain_key,
)
from protocol.errors import ConfigError, InvalidRequest
from protocol.wire.schema import param, read, refuse_unknown

HEADER = re.compile(r"^[ \t]*\[\[[ \t]*key[ \t]*\]\]", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_LOOKS_LIKE_TOML = re.compile(r"\[\[|\[\s*\w*\s*(?:\]|$)|\w+\s*=\s*[\"'\[{]")
_ADMIN_MARK = "admin"
_MAX_DIGESTS = 8
"""Digests of one key: two are valid while one replaces the other."""
_MAX_MODELS = 256
"""Patterns of models of one key; each request is compared with all."""
_MAX_COUNT = 10**15
"""Largest limit: below 2^53, up to which JSON readers keep integers exact."""


class KeyFileError(ConfigError):
    """A key file that cannot be read; the message names the line where there is one."""


def is_name(text: str) -> bool:
    """Return whether a text may be the name of a key: it stands in logs and metrics."""
    return bool(_NAME.fullmatch(text))


def _name(value: Any) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise ValueError(
            "must be 1 to 64 letters, digits or . _ @ + -, the first a letter or digit"
        )
    return value


def _digests(value: Any) -> tuple[bytes, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not 0 < len(texts) <= _MAX_DIGESTS:
        raise ValueError(f"must be a digest, or a list of 1 to {_MAX_DIGESTS} digests")
    if not all(isinstance(text, str) and _DIGEST.fullmatch(text) for text in texts):
        raise ValueError("must be the 64 hexadecimal digits of a SHA-256 digest")
    return tuple(bytes.fromhex(text) for text in texts)


def _clear_key(value: Any) -> str:
    if not isinstance(value, str) or not value or value != value.strip() or not value.isprintable():
        raise ValueError("must be a text without spaces around it and without control characters")
    return value


def _scopes(value: Any) -> frozenset[str]:
    known = sorted(EVERY_SCOPE)
    if not isinstance(value, list) or not value or not all(name in known for name in value):
        raise ValueError(f"must be a list of some of: {', '.join(known)}")
    return frozenset(map(KeyScope, value))


def _models(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, list) and 0 < len(value) <= _MAX_MODELS
    if not is_list or not all(isinstance(name, str) and 0 < len(name) <= 4096 for name in value):
        raise ValueError(f"must be a list of 1 to {_MAX_MODELS} names; leave it out for all models")
    return tuple(value)


def _expiry(value: Any) -> float:
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    elif isinstance(value, dt.date):
        moment = dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    else:
        raise ValueError("must be a date, as 2027-01-31, or a date with a time; without quotes")
    return expires_at(moment)


def expires_at(moment: dt.datetime) -> float:
    """Return the time of an expiry; raises `ValueError` if its year in UTC is not 1 to 9999."""
    try:
        return moment.astimezone(dt.UTC).timestamp()
    except OverflowError as error:
        raise ValueError("must be between the years 1 and 9999 in UTC") from error


def _priority(value: Any) -> PriorityClass:
    names = [priority.name.lower() for priority in PriorityClass]
    if value not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    return PriorityClass[value.upper()]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """One `[[key]]` table of a key file."""

    name: str = param("", "Name of the key, in logs, metrics and usage.", read=_name)
    sha256: tuple[bytes, ...] = param(
        (),
        "SHA-256 digest of the key in hexadecimal; a list while one key replaces another.",
        read=_digests,
    )
    key: str = param("", "The key itself, instead of `sha256`.", read=_clear_key)
    scopes: frozenset[str] = param(
        frozenset({"infer"}), "What it opens: `infer`, `metrics`, `admin`.", read=_scopes
    )
    models: tuple[str, ...] = param(
        (), "Models that it may use; `*` stands for any characters. Left out: all.", read=_models
    )
    priority: PriorityClass = param(
        PriorityClass.NORMAL,
        "`high`, `normal` or `low`: whose waiting requests go first.",
        read=_priority,
    )
    concurrent: int = param(
        0, "Answers that may run at once; further ones wait. 0: no limit.", low=0, high=_MAX_COUNT
    )
    requests_per_minute: int = param(0, "0: no limit.", low=0, high=_MAX_COUNT)
    tokens_per_minute: int = param(0, "0: no limit.", low=0, high=_MAX_COUNT)
    tokens_per_day: int = param(
        0, "Of a day that begins at midnight UTC. 0: no limit.", low=0, high=_MAX_COUNT
    )
    expires: float = param(
        math.inf, "Date, or date with time, from which on it is refused; UTC.", read=_expiry
    )


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Read a key file; raises `KeyFileError` that names the line."""
    return _parse_tables(text) if HEADER.search(text) else _parse_lines(text)


def _parse_lines(text: str) -> tuple[ApiKey, ...]:
    """Read one key a line; `admin` after it, separated by a space, marks an admin's key."""
    lines = [line.strip() for line in text.splitlines()]
    for i, line in enumerate(lines):
        if _LOOKS_LIKE_TOML.match(line):  # as keys, its lines would open the server
            raise KeyFileError(f"line {i + 1}: TOML needs a header [[key]] before each key")
    marked = [_marked(line) for line in lines if line and not line.startswith("#")]
    admins = {key for key, is_admin in marked if is_admin}
    keys = dict.fromkeys(key for key, _ in marked)
    return tuple(plain_key(digest(key), is_admin=key in admins) for key in keys)


def _marked(line: str) -> tuple[str, bool]:
    words = line.rsplit(maxsplit=1)
    is_admin = len(words) == 2 and words[1] == _ADMIN_MARK
    return (words[0], True) if is_admin else (line, False)


def _parse_tables(text: str) -> tuple[ApiKey, ...]:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # it says at which line
        raise KeyFileError(str(error)) from error
    unknown = sorted(table.keys() - {"key"})
    if unknown:
        raise KeyFileError(f"{_at(text, unknown[0])}unknown key '{unknown[0]:.64}'")
    rows = table["key"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise KeyFileError("each key must be a table [[key]]")
    starts = [match.start() for match in HEADER.finditer(text)]
    ends = [*starts[1:], len(text)]
    keys: list[ApiKey] = []
    for i, row in enumerate(rows):
        block = (starts[i], ends[i]) if len(starts) == len(rows) else None
        try:
            keys.append(_record(row))
        except InvalidRequest as error:
            line = _at(text, error.param or "", block)
            raise KeyFileError(f"{line}{_named(row)}{error.message}") from error
    by_digest(keys)
    return tuple(keys)


def _record(row: dict[str, Any]) -> ApiKey:
    refuse_unknown(KeyTable, row)
    table = read(KeyTable(), row)
    if not table.name:
        raise InvalidRequest("Field 'name': is missing", param="name")
    if bool(table.key) == bool(table.sha256):
        raise InvalidRequest("needs one of the fields 'sha256' and 'key'", param="key")
    return ApiKey(
        name=table.name,
        digests=table.sha256 or (digest(table.key),),
        scopes=table.scopes,
        models=table.models,
        limits=KeyLimits(
            priority=table.priority,
            concurrent=table.concurrent,
            requests_per_minute=table.requests_per_minute,
            tokens_per_minute=table.tokens_per_minute,
            tokens_per_day=table.tokens_per_day,
        ),
        expires_at=table.expires,
    )


def by_digest(keys: Sequence[ApiKey]) -> dict[bytes, ApiKey]:
    """Return the records by their digests; raises `KeyFileError` if two share one, or a name."""
    found: dict[bytes, ApiKey] = {}
    names: dict[str, ApiKey] = {}
    for key in keys:
        for each in key.digests:
            other = found.setdefault(each, key)
            if other is not key and not (other.is_plain and key.is_plain):
                raise KeyFileError(f"keys '{other.name}' and '{key.name}' are the same key")
            if key.scopes > other.scopes:
                found[each] = key
        other = names.setdefault(key.name, key)
        if other is not key and other.digests != key.digests:
            raise KeyFileError(f"two keys have the name '{key.name}'")
    return found


def _named(row: dict[str, Any]) -> str:
    name = row.get("name")
    return f"key '{name[:64]}': " if isinstance(name, str) else ""


def _at(text: str, field: str, block: tuple[int, int] | None = None) -> str:
    """Return where a field of a table stands, as `line N: `; where its table begins without it."""
    start, end = block or (0, len(text))
    name = re.escape(field.partition("[")[0])
    found = re.compile(rf"^[ \t]*\"?{name}\"?[ \t]*[=\]]", re.MULTILINE).search(text, start, end)
    if found is None and block is None:
        return ""
    return f"line {text.count(chr(10), 0, found.start() if found else start) + 1}: "
