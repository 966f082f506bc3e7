"""What the metrics read from the pool at each scrape: workers, slots, queue."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Current state of one connected worker."""

    name: str
    model: str
    state: str
    n_slots: int
    n_busy: int
    n_waiting: int = 0
    """Tasks in the worker that have no slot yet."""
    is_ejected: bool = False
    """Whether it gets one probe at a time, because its tasks fail or are slow."""


class PoolView(Protocol):
    """What the metrics read from the pool."""

    def workers(self) -> tuple[WorkerView, ...]:
        """List the connected workers."""

    def queue_depths(self) -> Mapping[str, int]:
        """Count the waiting tasks of each model."""

    def n_quarantined(self) -> int:
        """Count the requests that are refused because workers died with them."""

    def tasks_of_keys(self) -> Mapping[str, tuple[int, int]]:
        """Count the waiting and the running tasks of each API key."""
