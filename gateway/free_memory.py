"""Gives the system memory back that was freed, where glibc keeps it.

It keeps whatever lies below something that lives. uvloop takes 256 KiB for each client that begins
with TLS: 28,000 that left in the middle of the handshake, 2,000 at a time and without a key, took a
gateway from 53 to 593 MB, permanently.
"""

import asyncio
from collections.abc import Callable

from gateway.http.answer_budget import return_free_memory
from gateway.metrics.process_usage import ProcessUsage

_INTERVAL_S = 15.0
"""Seconds between two looks: to give back takes 10 to 20 ms, in a thread."""
_MAX_INTERVAL_S = 600.0
"""Seconds between two looks where what has grown is in use: no memory is had while glibc looks."""
_GROWTH = 32 * 1024 * 1024
"""Bytes by which the process must be larger than it was at its smallest."""
_WORTH = 8 * 1024 * 1024
"""Bytes that came back from a look that was worth it."""


class FreeMemory:
    """Notes how small the process has been."""

    def __init__(self, give_back: Callable[[], object] = return_free_memory) -> None:
        self._give_back = give_back
        self._least = ProcessUsage.now().resident_bytes
        self.interval_s = _INTERVAL_S
        """Seconds until the next look."""

    async def check(self) -> None:
        """Give back what is free if the process has grown.

        How much that is cannot be seen before: what is freed stays resident.
        """
        before = ProcessUsage.now().resident_bytes
        self._least = min(self._least, before)
        if before - self._least <= _GROWTH:
            self.interval_s = _INTERVAL_S
            return
        await asyncio.to_thread(self._give_back)
        is_worth_it = before - ProcessUsage.now().resident_bytes >= _WORTH
        self.interval_s = _INTERVAL_S if is_worth_it else min(2 * self.interval_s, _MAX_INTERVAL_S)


async def give_back_memory() -> None:
    """Look until this is cancelled."""
    memory = FreeMemory()
    while True:
        await asyncio.sleep(memory.interval_s)
        await memory.check()
