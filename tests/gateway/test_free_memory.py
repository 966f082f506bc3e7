"""Memory that was freed goes back to the system when the process has grown."""

import pytest

from gateway.free_memory import FreeMemory
from gateway.metrics.process_usage import ProcessUsage

MIB = 1024 * 1024


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of the process in MiB, which a test sets."""
    size = [50]
    usage = staticmethod(lambda: ProcessUsage(resident_bytes=size[0] * MIB))
    monkeypatch.setattr(ProcessUsage, "now", usage)
    return size


async def test_a_process_that_has_grown_gives_back_what_is_free(resident: list[int]) -> None:
    """Clients that left in the middle of TLS handshakes left 540 MB."""
    given_back = list[int]()
    memory = FreeMemory(lambda: given_back.append(resident[0]))
    for size in (50, 80, 100, 100, 40, 75):
        resident[0] = size
        await memory.check()
    assert given_back == [100, 100, 75]


async def test_what_is_in_use_is_looked_at_less_and_less_often(resident: list[int]) -> None:
    memory = FreeMemory(lambda: None)
    resident[0] = 600
    intervals = []
    for _ in range(7):
        await memory.check()
        intervals.append(memory.interval_s)
    assert intervals == [30, 60, 120, 240, 480, 600, 600]

    freeing = FreeMemory(lambda: resident.__setitem__(0, 300))
    resident[0] = 700
    await freeing.check()
    assert freeing.interval_s == 15
    resident[0] = 600
    await memory.check()
    resident[0] = 50
    await memory.check()
    assert memory.interval_s == 15
