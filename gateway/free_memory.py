"""Gives the system memory back that was freed, where glibc keeps it.

It keeps whatever lies below something that lives. uvloop takes 256 KiB for each client that begins
with TLS: 28,000 that left in the middle of the handshake, 2,000 at a time and without a key, took a
gateway from 53 to 593 MB, for good.
"""

import asyncio
from collections.abc import Callable

from gateway.http.answer_budget import return_free_memory
from gateway.metrics.process_usage import ProcessUsage

_INTERVAL_S = 15.0
"""Seconds between two looks: to give back takes 10 to 20 ms, in a thread."""
_GROWTH = 32 * 1024 * 1024
"""Bytes by which the process must be larger than it was at its smallest."""


class FreeMemory:
    """Notes how small the process has been."""

    def __init__(self, give_back: Callable[[], object] = return_free_memory) -> None:
        self._give_back = give_back
        self._least = ProcessUsage.now().resident_bytes

    def __repr__(self) -> str:
        return f"<FreeMemory least={self._least}>"

    async def check(self) -> None:
        """Give back what is free if the process has grown.

        How much that is cannot be seen from here: what is freed stays resident.
        """
        resident = ProcessUsage.now().resident_bytes
        self._least = min(self._least, resident)
        if resident - self._least > _GROWTH:
            await asyncio.to_thread(self._give_back)


async def give_back_memory() -> None:
    """Look until this is cancelled."""
    memory = FreeMemory()
    while True:
        await asyncio.sleep(_INTERVAL_S)
        await memory.check()
