"""Memory that was freed goes back to the system when the process has grown."""

import pytest

from gateway.free_memory import FreeMemory
from gateway.metrics.process_usage import ProcessUsage

MIB = 1024 * 1024


async def test_a_process_that_has_grown_gives_back_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that left in the middle of TLS handshakes left 540 MB."""
    resident, given_back = [50], list[int]()

    def now() -> ProcessUsage:
        return ProcessUsage(resident_bytes=resident[0] * MIB)

    monkeypatch.setattr(ProcessUsage, "now", now)
    memory = FreeMemory(lambda: given_back.append(resident[0]))
    for size in (50, 80, 100, 100, 40, 75):
        resident[0] = size
        await memory.check()
    assert given_back == [100, 100, 75]
