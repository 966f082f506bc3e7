"""What one request has cost, as a line of the usage log."""

import time
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import orjson

_LONGEST_TEXT = 512
"""Characters of a text in a line: longer ones are cut."""
_MAX_COUNT = 1 << 53
"""No honest count reaches it; SQLite's sums of them stay exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Counts of requests and tokens. The first three are paid for, the last three were computed."""

    requests: int = 0
    prompt: int = 0
    """Tokens of the prompts, each prompt once, that were read or found in a cache."""
    cached: int = 0
    """Of these, found in a cache."""
    completion: int = 0
    """Tokens of the answers, each token once, also if its client has hung up meanwhile."""
    read: int = 0
    """Prompt tokens that workers computed, also if they did it twice."""
    reused: int = 0
    """Tokens that workers found in their caches."""
    generated: int = 0
    """Tokens that workers generated, also those that were lost and generated again."""

    def plus(self, other: "Tokens") -> "Tokens":
        """Return the sums."""
        return Tokens(**{name: getattr(self, name) + getattr(other, name) for name in COUNTS})


COUNTS = tuple(field.name for field in fields(Tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEntry:
    """One request, or the sum of several of one day, key and model."""

    time: float
    """When it ended, in seconds since 1970."""
    request_id: str = ""
    key: str = ""
    """Name of the API key; empty without keys."""
    tenant: str = ""
    """Whose fair share it was; empty without keys."""
    model: str = ""
    path: str = ""
    """Endpoint; empty for what the gateway itself asks its workers."""
    status: int = 0
    finish: str = ""
    tokens: Tokens = Tokens()

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Day, key, tenant and model: what sums are kept by."""
        return usage_day(self.time), self.key, self.tenant, self.model

    def merged(self, other: "UsageEntry") -> "UsageEntry":
        """Return the sum of two entries of one group."""
        tokens = self.tokens.plus(other.tokens)
        return replace(self, request_id="", path="", status=0, finish="", tokens=tokens)

    def line(self) -> bytes:
        """Write it as one line of JSON; texts are cut, and so can be read in any case."""
        row = {name: value for name, value in asdict(self).items() if name != "tokens" and value}
        for name, value in row.items():
            if isinstance(value, str):
                row[name] = value[:_LONGEST_TEXT].encode(errors="replace").decode()
        return orjson.dumps(row | asdict(self.tokens), option=orjson.OPT_APPEND_NEWLINE)


def usage_day(at: float) -> str:
    """Return the day of a time, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def read_entry(line: bytes) -> UsageEntry:
    """Read a line of the log; raises `ValueError`."""
    found = orjson.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    counts = {name: _count(found.get(name, 0), name) for name in COUNTS}
    at = found.get("time")
    if not isinstance(at, int | float) or not 0 <= at < 1e11:
        raise ValueError("time: not a time")
    return UsageEntry(
        time=float(at),
        key=_text(found.get("key", ""), "key"),
        tenant=_text(found.get("tenant", ""), "tenant"),
        model=_text(found.get("model", ""), "model"),
        tokens=Tokens(**counts),
    )


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise ValueError(f"{name}: not a count")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: not a text")
    return value
