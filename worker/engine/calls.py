"""Work that needs the backend but is no generation, and when its turn is."""

import time
from collections import deque
from collections.abc import Sequence

from protocol.errors import TaskError
from protocol.wire.messages import Terminal
from worker.engine.slot import Slot
from worker.engine.stats import Counters, EngineProgress
from worker.engine.task import EngineJob, failure


class EngineJobs:
    """Does calls as they come, and keeps those for a busy slot, or that take as long as a step."""

    def __init__(self, counters: Counters, progress: EngineProgress) -> None:
        self._counters = counters
        self._progress = progress
        self._for_slots: list[EngineJob] = []
        self._heavy: deque[EngineJob] = deque()

    def __bool__(self) -> bool:
        return bool(self._for_slots or self._heavy)

    def take(self, call: EngineJob) -> list[Terminal]:
        """Keep a call for its turn, or do it if that is now."""
        if call.slot >= 0:
            self._for_slots.append(call)
        elif call.is_heavy:
            self._heavy.append(call)
        else:
            return self._do(call)
        return []

    def do_for_idle(self, slots: Sequence[Slot]) -> list[Terminal]:
        """Do the calls whose slots are idle now; they come before tasks that want the slots."""
        found = [call for call in self._for_slots if slots[call.slot].run is None]
        self._for_slots = [call for call in self._for_slots if call not in found]
        return [answer for call in found for answer in self._do(call)]

    def do_heavy(self) -> list[Terminal]:
        """Do the oldest of the calls that take as long as a step."""
        if not self._heavy:
            return []
        start = time.monotonic()
        answers = self._do(self._heavy.popleft())
        self._progress.took(time.monotonic() - start)
        return answers

    def _do(self, call: EngineJob) -> list[Terminal]:
        self._progress.begin()
        try:
            answer = call.work()
        except TaskError as error:
            answer = failure(call.task_id, call.attempt, error)
        except Exception as error:
            fault = self._counters.fault(call.task_id, error)
            answer = failure(call.task_id, call.attempt, fault)
        return [] if answer is None else [answer]

    def abort(self, key: tuple[int, int]) -> bool:
        """Drop the heavy call of an attempt; tell whether there was one."""
        n = len(self._heavy)
        self._heavy = deque(call for call in self._heavy if (call.task_id, call.attempt) != key)
        return len(self._heavy) < n

    def drop(self) -> list[EngineJob]:
        """Forget all of them; return what they were."""
        found = [*self._heavy, *self._for_slots]
        self._heavy.clear()
        self._for_slots.clear()
        return found
