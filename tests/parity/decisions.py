"""Where we answer differently from llama-server, and why."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One difference that is meant."""

    why: str
    status: int = 0
    """Our status, where it differs."""
    message: bool = False
    """Our error message differs."""
    lacks: frozenset[str] = frozenset()
    """What ours lacks, as `tests/parity/compare.py` says it."""


DECISIONS: Mapping[str, Decision] = {}
