"""Jobs of the engine: work on the backend other than generation, such as saving a slot."""

import time
from collections import deque
from collections.abc import Sequence

from protocol.errors import TaskError
from protocol.wire.messages import Envelope, TaskKey
from worker.engine.slot import Slot
from worker.engine.stats import Counters, EngineProgress
from worker.engine.task import EngineJob, failed


class EngineJobs:
    """Does short jobs at once; keeps long ones, and those for a busy slot."""

    def __init__(self, counters: Counters, progress: EngineProgress, step_target_s: float) -> None:
        self._counters = counters
        self._progress = progress
        self._step_target_s = step_target_s
        self._heavy_at = 0.0
        """Time before which running tasks come first: they get as much time as the last long job
        took, if that was more than a step may take."""
        self._for_slots: list[EngineJob] = []
        self._heavy: deque[EngineJob] = deque()

    def can_do(self, slots: Sequence[Slot]) -> bool:
        """Return whether a job can be done now."""
        if self._can_do_heavy(slots):
            return True
        return any(slots[job.slot].run is None for job in self._for_slots)

    def _can_do_heavy(self, slots: Sequence[Slot]) -> bool:
        if not self._heavy:
            return False
        is_busy = any(slot.run is not None and not slot.is_paused for slot in slots)
        return not is_busy or time.monotonic() >= self._heavy_at

    def take(self, job: EngineJob) -> list[Envelope]:
        """Do a short job, or keep it for later; return the messages so far."""
        if job.slot >= 0:
            self._for_slots.append(job)
        elif job.is_heavy:
            self._heavy.append(job)
        else:
            return self._do(job)
        return []

    def do_for_idle(self, slots: Sequence[Slot]) -> list[Envelope]:
        """Do the jobs whose slots are idle now; they come before tasks that wait for the slots."""
        found = [job for job in self._for_slots if slots[job.slot].run is None]
        if found:
            self._for_slots = [job for job in self._for_slots if slots[job.slot].run is not None]
        return [answer for job in found for answer in self._do(job)]

    def do_heavy(self, slots: Sequence[Slot]) -> list[Envelope]:
        """Do the oldest of the jobs that take as long as a step, if it is their turn."""
        if not self._can_do_heavy(slots):
            return []
        start = time.monotonic()
        answers = self._do(self._heavy.popleft())
        end = time.monotonic()
        self._progress.took(end - start)
        self._heavy_at = end + (end - start if end - start > self._step_target_s else 0.0)
        return answers

    def _do(self, job: EngineJob) -> list[Envelope]:
        self._progress.begin()
        try:
            answer = job.work()
        except TaskError as error:
            return [failed(job.key, error, job.usage())]
        except Exception as error:
            fault = self._counters.fault(job.key, error)
            return [failed(job.key, fault, job.usage())]
        return [] if answer is None else [Envelope(job.key, answer)]

    def abort(self, key: TaskKey) -> EngineJob | None:
        """Drop the job of an attempt that waits, and return it; None if there is none."""
        for jobs in (self._heavy, self._for_slots):
            for job in jobs:
                if job.key == key:
                    jobs.remove(job)
                    return job
        return None

    def drop_of(self, connection: int) -> None:
        """Drop the jobs of a connection."""
        self._heavy = deque(job for job in self._heavy if job.key.connection != connection)
        self._for_slots = [job for job in self._for_slots if job.key.connection != connection]

    def drop(self) -> list[EngineJob]:
        """Drop all jobs and return them."""
        found = [*self._heavy, *self._for_slots]
        self._heavy.clear()
        self._for_slots.clear()
        return found
