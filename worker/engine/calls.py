"""Queues jobs that need the backend but are no generation."""

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

    def __init__(self, counters: Counters, progress: EngineProgress) -> None:
        self._counters = counters
        self._progress = progress
        self._for_slots: list[EngineJob] = []
        self._heavy: deque[EngineJob] = deque()

    def __bool__(self) -> bool:
        return bool(self._for_slots or self._heavy)

    def take(self, call: EngineJob) -> list[Envelope]:
        """Do a short job, or keep it for later; return the messages so far."""
        if call.slot >= 0:
            self._for_slots.append(call)
        elif call.is_heavy:
            self._heavy.append(call)
        else:
            return self._do(call)
        return []

    def do_for_idle(self, slots: Sequence[Slot]) -> list[Envelope]:
        """Do the jobs whose slots are idle now; they come before tasks that wait for the slots."""
        found = [call for call in self._for_slots if slots[call.slot].run is None]
        self._for_slots = [call for call in self._for_slots if call not in found]
        return [answer for call in found for answer in self._do(call)]

    def do_heavy(self) -> list[Envelope]:
        """Do the oldest of the jobs that take as long as a step."""
        if not self._heavy:
            return []
        start = time.monotonic()
        answers = self._do(self._heavy.popleft())
        self._progress.took(time.monotonic() - start)
        return answers

    def _do(self, call: EngineJob) -> list[Envelope]:
        self._progress.begin()
        try:
            answer = call.work()
        except TaskError as error:
            return [failed(call.key, error, call.usage())]
        except Exception as error:
            fault = self._counters.fault(call.key.id, error)
            return [failed(call.key, fault, call.usage())]
        return [] if answer is None else [Envelope(call.key, answer)]

    def abort(self, key: TaskKey) -> EngineJob | None:
        """Drop the heavy job of an attempt and return it; None if there is none."""
        found = next((call for call in self._heavy if call.key == key), None)
        if found is not None:
            self._heavy.remove(found)
        return found

    def drop_of(self, connection: int) -> None:
        """Drop the jobs of a connection."""
        self._heavy = deque(one for one in self._heavy if one.key.connection != connection)
        self._for_slots = [one for one in self._for_slots if one.key.connection != connection]

    def drop(self) -> list[EngineJob]:
        """Drop all jobs and return them."""
        found = [*self._heavy, *self._for_slots]
        self._heavy.clear()
        self._for_slots.clear()
        return found
