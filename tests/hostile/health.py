"""What the processes of a pool look like from outside: pids, descriptors, slots, lag."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.process import marked
from tests.e2e.served import Served, eventually

_HARM = re.compile(
    r" died | quarantined| process given up |Traceback|^\S+ CRITICAL"
    r"|^(\S+Z )?ERROR (supervisor )?forged|\bstuck\b"
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The processes of a pool, and how many descriptors each holds."""

    descriptors: dict[int, int]

    @classmethod
    def of(cls, served: Served) -> "Footprint":
        """Count now."""
        return cls({pid: len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in _pids(served)})


def _pids(served: Served) -> list[int]:
    return sorted(marked(served.mark))


def leaks(served: Served, before: Footprint, *, spare: int = 3) -> list[str]:
    """Return what is left after everything has ended, or is missing; empty if all is well."""
    found: list[str] = []
    if not eventually(served.is_idle, 20.0):
        found.append(f"slots are busy: {served.client.get('/slots').text[:500]}")
    if not eventually(lambda: not _waiting(served), 10.0):
        found.append(f"tasks wait: {_waiting(served)}")
    if sorted(before.descriptors) != _pids(served):
        found.append(f"processes were {sorted(before.descriptors)} and are {_pids(served)}")

    def grown() -> dict[int, tuple[int, int]]:
        now = Footprint.of(served).descriptors
        pairs = {pid: (n, now.get(pid, 0)) for pid, n in before.descriptors.items()}
        return {pid: pair for pid, pair in pairs.items() if pair[1] > pair[0] + spare}

    if not eventually(lambda: _connections(served) <= spare, 20.0):
        found.append(f"connections are counted as open: {_connections(served)}")
    if not eventually(lambda: not grown(), 20.0):
        found.append(f"descriptors grew (pid: before, after): {grown()}")
    return found


def _connections(served: Served) -> float:
    lines = served.client.get("/metrics").text.splitlines()
    found = (one for one in lines if one.startswith("llamapool_http_connections "))
    return sum(float(line.rpartition(" ")[2]) for line in found)


def _waiting(served: Served) -> list[str]:
    lines = served.client.get("/metrics").text.splitlines()
    depths = [line for line in lines if line.startswith("llamapool_queue_tasks{")]
    return [line for line in depths if float(line.rpartition(" ")[2])]


def harm_in_log(served: Served) -> list[str]:
    """Return the lines that tell of a death or of an exception that nobody expected."""
    return [line for line in served.lines if _HARM.search(line)]


@dataclass(frozen=True, slots=True)
class Lag:
    """How long a loop let others wait: bounds of the histogram's buckets, in seconds."""

    p99_s: float
    worst_s: float

    def __str__(self) -> str:
        return f"p99 <= {self.p99_s:g} s, worst <= {self.worst_s:g} s"


def loop_lag(served: Served) -> dict[str, Lag]:
    """Return what the metrics tell of the loops of gateway and workers."""
    buckets: dict[str, list[tuple[float, float]]] = {}
    longest_s: dict[str, float] = {}
    for family in text_string_to_metric_families(served.client.get("/metrics").text):
        if family.name.endswith("_loop_lag_max_seconds"):  # the gateway tells it to the ms
            longest_s[family.name.replace("_max_", "_")] = family.samples[0].value
        if not family.name.endswith("_loop_lag_seconds"):
            continue
        for one in family.samples:
            if one.name.endswith("_bucket"):
                name = " ".join([family.name, one.labels.get("worker", "")]).strip()
                buckets.setdefault(name, []).append((float(one.labels["le"]), one.value))
    lags = {name: _lag(rows) for name, rows in buckets.items() if rows[-1][1]}
    return {
        name: replace(lag, worst_s=longest_s.get(name, lag.worst_s)) for name, lag in lags.items()
    }


def _lag(rows: list[tuple[float, float]]) -> Lag:
    """Read a histogram: bounds of its buckets, and how many samples lie at or below each."""
    total = rows[-1][1]
    p99_s, worst_s = (
        next(bound for bound, n in rows if n >= share * total) for share in (0.99, 1.0)
    )
    return Lag(p99_s, worst_s)
