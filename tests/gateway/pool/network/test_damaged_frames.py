"""What is damaged on the way ends its connection at once, and nothing else."""

import pytest

from gateway.soak.gate import GateAddress, TcpGate
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.pool.network.fleet import Fleet, answers

pytestmark = pytest.mark.usefixtures("looks_always")


class NextChunk:
    """Flips the last bit of the next chunk, which is in the box of a CURVE message."""

    def __init__(self, gate: TcpGate) -> None:
        self.is_flipped = False
        gate.transform = self._transformed

    def _transformed(self, data: bytes) -> bytes:
        if self.is_flipped:
            return data
        self.is_flipped = True
        return data[:-1] + bytes([data[-1] ^ 1])


async def test_a_damaged_message_ends_its_connection_before_its_worker_counts_as_silent(
    fleet: Fleet,
) -> None:
    gate = TcpGate(GateAddress(port=fleet.port))
    endpoint = f"tcp://127.0.0.1:{(await gate.open()).port}"
    far = FakeWorker(endpoint, FakeOptions(name="far"), fleet.keys("far"))
    async with fleet.worker(fleet.keys("near"), "near"), far:
        await fleet.until(2)
        await far.wait_heartbeats(2)
        NextChunk(gate)  # nothing but heartbeats is under way now
        await fleet.logged("its connection has ended")
        assert not any("was silent" in line for line in fleet.waiter.lines)
        await answers(fleet)
    await gate.close()
