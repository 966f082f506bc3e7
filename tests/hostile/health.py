"""What the processes of a pool look like from outside: pids, descriptors, slots, lag."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.process import marked
from tests.e2e.served import Served, eventually

_LAG = re.compile(r"^(llamapool_\w+_loop_lag_seconds\w*)(\{[^}]*\})? (\S+)$", re.MULTILINE)
_HARM = re.compile(r" died |Traceback|^\S+ CRITICAL|forged|gateway is silent| stuck ")


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
    """Say what is left after everything has ended, or is missing; empty if all is well."""
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

    if not eventually(lambda: not grown(), 20.0):
        found.append(f"descriptors grew (pid: before, after): {grown()}")
    return found


def _waiting(served: Served) -> list[str]:
    lines = served.client.get("/metrics").text.splitlines()
    depths = [line for line in lines if line.startswith("llamapool_queue_tasks{")]
    return [line for line in depths if float(line.rpartition(" ")[2])]


def harm_in_log(served: Served) -> list[str]:
    """Return the lines that tell of a death or of an exception that nobody expected."""
    return [line for line in served.lines if _HARM.search(line)]


def loop_lag(served: Served) -> dict[str, float]:
    """Return what the metrics tell of the loops of gateway and workers, in seconds."""
    text = served.client.get("/metrics").text
    found = {name + labels: float(value) for name, labels, value in _LAG.findall(text)}
    return {name: value for name, value in found.items() if "_created" not in name}


def worst_lag_s(served: Served) -> dict[str, float]:
    """Return the longest turn of each loop, in seconds; there is at least the gateway's."""
    found = {name: value for name, value in loop_lag(served).items() if "_max" in name}
    assert any("gateway" in name for name in found), loop_lag(served)
    return found
