"""One API key: what it opens, and its limits. The key itself is kept as its SHA-256 digest only."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from typing import Any


class KeyScope(StrEnum):
    """What a key opens."""

    INFER = "infer"
    """Everything that asks a model, and the lists of models, slots and properties."""
    METRICS = "metrics"
    """What shows the load of the whole pool."""
    ADMIN = "admin"
    """Everything: also what changes the server for others, and `/admin/...`."""


EVERY_SCOPE = frozenset(KeyScope)


class PriorityClass(IntEnum):
    """Class of a key: waiting requests of a lower number go first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What a key may use; 0 is no limit."""

    priority: PriorityClass = PriorityClass.NORMAL
    concurrent: int = 0
    """Tasks that may run or compete for slots at once; further ones wait."""
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    tokens_per_day: int = 0

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens have to be counted."""
        return bool(self.tokens_per_minute or self.tokens_per_day)


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is known of a key."""

    name: str
    digests: tuple[bytes, ...]
    """SHA-256 of the key; of several keys while one replaces another."""
    scopes: frozenset[str]
    models: tuple[str, ...] = ()
    """Names that it may use, `*` for any characters; empty is all."""
    limits: KeyLimits = NO_LIMITS
    expires_at: float = math.inf
    """Unix time."""
    is_plain: bool = False
    """Whether it comes without a name and scopes: as an option, or as a line of a file."""

    def allows(self, *names: str) -> bool:
        """Return whether it may use a model that has these names."""
        patterns = self.models
        return not patterns or any(
            fnmatchcase(name, pattern) for pattern in patterns for name in names
        )


KEY = "llamapool.key"
"""The `ApiKey` of a request, in its ASGI scope; None without keys."""


def key_of(scope: Mapping[str, Any]) -> ApiKey | None:
    """Return the key of a request; None without keys."""
    found: ApiKey | None = scope.get(KEY)
    return found


def limits_of(scope: Mapping[str, Any]) -> KeyLimits:
    """Return the limits of a request's key; without keys there are none."""
    key = key_of(scope)
    return key.limits if key is not None else NO_LIMITS


def digest(key: str) -> bytes:
    """Return the digest of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


_PLAIN_SCOPES = frozenset({KeyScope.INFER, KeyScope.METRICS})
_NAME_CHARS = 12
"""Hexadecimal digits of the digest that are the name: 48 bits."""


def plain_key(digest_: bytes, *, is_admin: bool = False) -> ApiKey:
    """Make the record of a key that has no name: it is called by the start of its digest."""
    return ApiKey(
        name=digest_.hex()[:_NAME_CHARS],
        digests=(digest_,),
        scopes=EVERY_SCOPE if is_admin else _PLAIN_SCOPES,
        is_plain=True,
    )
