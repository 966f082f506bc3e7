"""The part of the pool's state that only one gateway has, as gateways exchange it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.feed.history import GatewaySecond, read_seconds
from gateway.pool.watch.activity import SlotUse
from gateway.pool.watch.events import EventKind, PoolEvent

Row = Mapping[str, Any]

_ITS_OWN = frozenset({EventKind.EJECTED, EventKind.LET_IN, EventKind.REFUSED})
"""Events that one gateway decides; all other kinds reach every gateway."""

_OF_REQUEST = (
    *("time", "request_id", "key", "model", "path", "status", "finish", "worker", "route"),
    *("n_prompt", "n_cached", "n_predicted", "n_tasks", "n_continued"),
    *("queue_s", "ttft_s", "itl_s", "duration_s"),
)
"""The fields of the log line of a request that are shown; `client`, its address, is not."""
MAX_TEXT = 100
"""Characters of a text that comes from a client or a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPart:
    """Slots, queue, events and requests of one gateway; JSON on the way to another one."""

    name: str
    """Unique among the gateways of a host, those that have ended included."""
    pid: int
    slots: Mapping[str, Sequence[SlotUse]] = field(default_factory=dict)
    queue: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Waiting tasks by model and key."""
    events: Mapping[str, Row] = field(default_factory=dict)
    requests: Mapping[str, Row] = field(default_factory=dict)
    n_waiting: Mapping[str, int] = field(default_factory=dict)
    """Tasks by model that have no slot, those that were sent ahead too."""
    n_moved: int = 0
    """Tasks that went on at another worker, since its start."""
    n_refused: int = 0
    """Requests that it refuses because workers died with them."""

    def as_row(self) -> dict[str, Any]:
        """Return it as JSON for another gateway, without the events that reach every gateway."""
        own = {key: row for key, row in self.events.items() if row["kind"] in _ITS_OWN}
        return {**asdict(self), "events": own}


def read_part(answer: Mapping[str, Any]) -> tuple[GatewayPart, dict[int, GatewaySecond]]:
    """Read the answer of another gateway: its part and its seconds.

    Raises KeyError, TypeError or ValueError for that of another release.
    """
    fields = dict(answer)
    seconds = read_seconds(fields.pop("seconds"))
    return GatewayPart(**fields), seconds


def event_rows(gateway: str, events: Sequence[PoolEvent]) -> dict[str, Row]:
    """Show events, each under an id that no other gateway gives."""
    return {f"{gateway}.{event.number}": _shown(event) for event in events}


def request_rows(gateway: str, rows: Sequence[Row]) -> dict[str, Row]:
    """Show requests that have ended, without their clients' addresses and their contents."""
    return {
        f"{gateway}.{row['number']}": {
            name: _short(row[name]) for name in _OF_REQUEST if row.get(name) is not None
        }
        for row in rows
    }


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _shown(event: PoolEvent) -> Row:
    row = {"time": round(event.time, 1), "kind": str(event.kind)}
    more = {
        "name": event.name,
        "model": event.model,
        "why": event.why,
        "n_tasks": event.n_tasks,
    }
    return row | {key: value for key, value in more.items() if value}
