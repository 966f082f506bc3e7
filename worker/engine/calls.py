"""Work that needs the backend but is no generation, and when its turn is. Pure."""

from collections import deque
from collections.abc import Sequence

from worker.engine.slot import Slot
from worker.engine.task import Call


class Calls:
    """Calls that cannot be done as they come: for a busy slot, or as long as a step."""

    def __init__(self) -> None:
        self._for_slots: list[Call] = []
        self._heavy: deque[Call] = deque()

    def __bool__(self) -> bool:
        return bool(self._for_slots or self._heavy)

    def keep(self, call: Call) -> bool:
        """Keep a call for its turn; false if that is now."""
        if call.slot >= 0:
            self._for_slots.append(call)
        elif call.is_heavy:
            self._heavy.append(call)
        else:
            return False
        return True

    def for_idle(self, slots: Sequence[Slot]) -> list[Call]:
        """Take the calls whose slots are idle now; they come before tasks that want the slots."""
        found = [call for call in self._for_slots if slots[call.slot].run is None]
        self._for_slots = [call for call in self._for_slots if call not in found]
        return found

    def heavy(self) -> Call | None:
        """Take the oldest of the calls that take as long as a step."""
        return self._heavy.popleft() if self._heavy else None

    def abort(self, key: tuple[int, int]) -> bool:
        """Drop the heavy call of an attempt; tell whether there was one."""
        n = len(self._heavy)
        self._heavy = deque(call for call in self._heavy if (call.task_id, call.attempt) != key)
        return len(self._heavy) < n

    def drop(self) -> list[Call]:
        """Take all of them."""
        found = [*self._heavy, *self._for_slots]
        self._heavy.clear()
        self._for_slots.clear()
        return found
