"""Findings of checks."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """It works, worse than it could."""
    FAIL = "fail"
    """It will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    level: Level
    text: str
    remedy: str = ""
    """How to fix it."""


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, Level.OK, text)


def warn(name: str, text: str, remedy: str) -> Finding:
    """It works, worse than it could."""
    return Finding(name, Level.WARN, text, remedy)


def fail(name: str, text: str, remedy: str) -> Finding:
    """It will not work."""
    return Finding(name, Level.FAIL, text, remedy)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 if anything will not work."""
    return int(any(finding.level is Level.FAIL for finding in findings))


def mib(n_bytes: float) -> str:
    """Format a size for a person."""
    return f"{n_bytes / 2**20:,.0f} MiB" if n_bytes < 2**33 else f"{n_bytes / 2**30:,.1f} GiB"
