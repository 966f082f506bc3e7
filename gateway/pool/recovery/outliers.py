"""Workers that are alive but fail or are slow: they get one task at a time until they recover.

As Envoy's outlier detection: several failures in a row eject a worker, at most half of the workers
of a model, and the time between two probes doubles. A worker also counts as failing when its first
tokens come five times later than was predicted. Pure; time is passed in.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.pool.tasks.task import Task
from gateway.pool.workers.worker import Worker

_MAX_FAILURES = 5
"""Failed tasks in a row that eject a worker, as Envoy's `consecutive_5xx`."""
_MAX_SLOW = 3
"""Late first tokens in a row that eject a worker."""
_SLOW_FACTOR = 5.0
"""A first token is late if it takes this many times the predicted time."""
_SLOW_MIN_S = 1.0
"""Seconds; a first token that comes sooner is never late."""
_N_GOOD = 3
"""Probes in a row that must go well."""
_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
"""Seconds between two probes: at first, and at most."""


@dataclass(slots=True)
class _Record:
    """How the latest tasks of one worker went."""

    n_failures: int = 0
    n_slow: int = 0
    n_good: int = 0
    """Probes in a row that went well."""
    n_read: int = 0
    """Prompts that it has read: before the first one, a prediction is a guess."""
    pause_s: float = _PAUSE_S
    probe_at: float = 0.0


class OutlierDetection:
    """The records of all workers; it alone ejects workers and lets them in."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        self._workers = workers
        self._records: dict[str, _Record] = {}
        """By the key of the connection."""

    def __repr__(self) -> str:
        return f"<OutlierDetection records={len(self._records)}>"

    def worker_left(self, worker: Worker) -> None:
        """Note that a worker takes nothing more; if too many others are ejected, let some in."""
        self._records.pop(worker.key, None)
        ready = [w for w in self._workers.values() if w.model == worker.model and w.is_ready]
        ejected = [other for other in ready if other.is_ejected]
        for other in ejected[: len(ejected) - len(ready) // 2]:
            self._let_in(other)

    def assigned(self, task: Task, expected_s: float) -> None:
        """Note a task that goes to a worker; to one that is ejected it is a probe."""
        worker = self._workers[task.worker]
        record = self._record(worker)
        is_guess = not record.n_read or worker.is_sleeping or task.spec.has_media
        task.expected_s = 0.0 if is_guess else expected_s
        if worker.is_ejected:
            worker.allow_probe(False)

    def read(self, task: Task, now: float) -> str:
        """Note the first delta of a task; return why its worker is ejected now, empty if not."""
        worker = self._workers[task.worker]
        record = self._record(worker)
        record.n_read += 1
        limit_s = max(_SLOW_MIN_S, _SLOW_FACTOR * task.expected_s)
        if not task.expected_s or now - task.assigned_at <= limit_s:
            record.n_slow = 0
            return ""
        record.n_slow += 1
        slow = f"{record.n_slow} first tokens in a row came {_SLOW_FACTOR:g} times too late"
        return self._eject_or_delay(worker, record, slow if record.n_slow >= _MAX_SLOW else "", now)

    def ended(self, task: Task, now: float, *, failed: bool) -> str:
        """Note the end of an attempt; return why its worker is ejected now, empty if not."""
        worker = self._workers[task.worker]
        record = self._record(worker)
        if failed:
            record.n_failures += 1
            bad = f"{record.n_failures} tasks in a row failed"
            return self._eject_or_delay(
                worker, record, bad if record.n_failures >= _MAX_FAILURES else "", now
            )
        record.n_failures = 0
        if worker.is_ejected and not record.n_slow:
            record.n_good += 1
            record.pause_s, record.probe_at = _PAUSE_S, now
            if record.n_good >= _N_GOOD:
                self._let_in(worker)
        return ""

    def due(self, now: float) -> list[Worker]:
        """Let ejected workers have their next probe; return those that may have one now."""
        found: list[Worker] = []
        for worker in self._workers.values():
            is_idle = worker.is_ejected and not worker.may_probe and not worker.tasks
            if is_idle and self._record(worker).probe_at <= now:
                worker.allow_probe(True)
                found.append(worker)
        return found

    def _eject_or_delay(self, worker: Worker, record: _Record, cause: str, now: float) -> str:
        """Eject a worker for a cause, if there is one, or let it wait longer for its next probe."""
        if worker.is_ejected:
            record.n_good = 0
            record.pause_s = min(2 * record.pause_s, _MAX_PAUSE_S)
            record.probe_at = now + record.pause_s
            return ""
        if not cause or not worker.is_ready or not _may_eject(worker, self._workers.values()):
            return ""
        worker.eject()
        record.n_good, record.pause_s, record.probe_at = 0, _PAUSE_S, now + _PAUSE_S
        return cause

    def _let_in(self, worker: Worker) -> None:
        worker.let_in()
        self._records[worker.key] = _Record(n_read=self._record(worker).n_read)

    def _record(self, worker: Worker) -> _Record:
        return self._records.setdefault(worker.key, _Record())


def _may_eject(worker: Worker, workers: Iterable[Worker]) -> bool:
    """Return whether at most half of the workers of its model would be ejected with it."""
    ready = [each for each in workers if each.model == worker.model and each.is_ready]
    return 2 * (1 + sum(other.is_ejected for other in ready)) <= len(ready)
