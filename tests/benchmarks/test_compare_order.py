"""In which order the two servers of a comparison are loaded, and when they are up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.compare import measure, schedule
from benchmarks.compare.__main__ import main
from benchmarks.compare.measure import Result, Subject
from benchmarks.compare.schedule import ORDERS, Order, Plan
from benchmarks.compare.servers import Flags, Side
from benchmarks.compare.servers import Server as ServerAddress
from benchmarks.compare.workloads import WORKLOADS, Workload
from gateway.bench.client.dialects import BenchEndpoint, BenchTarget
from gateway.bench.drive import BenchRun


class Machine:
    """Notes which servers are up and what they are asked."""

    def __init__(self) -> None:
        self.up: list[Side] = []
        self.runs: list[tuple[str, Side, int, int, int]] = []
        """Workload, side, round, seed, and how many servers were up."""

    @contextlib.asynccontextmanager
    async def opened(
        self, workload: Workload, side: Side, _binary: Path, _flags: Flags
    ) -> AsyncIterator["Server"]:
        self.up.append(side)
        try:
            yield Server(self, workload.name, side)
        finally:
            self.up.remove(side)


class Server:
    def __init__(self, machine: Machine, workload: str, side: Side) -> None:
        self.machine, self.workload, self.side = machine, workload, side

    async def loaded(self, number: int, seed: int) -> Result:
        n_up = len(self.machine.up)
        self.machine.runs.append((self.workload, self.side, number, seed, n_up))
        details: dict[str, Any] = {"load": {"errors": {}}, "background": {"errors": {}}}
        return Result(self.workload, self.side, number, {}, details)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(schedule, "opened", found.opened)
    return found


def plan() -> Plan:
    flags = Flags(model=Path("m"), slots=8, ctx=1024, threads=2)
    return Plan(workloads=WORKLOADS[:2], binary=Path("b"), flags=flags, rounds=2, seed=3)


async def test_in_turn_each_run_has_the_machine_alone(machine: Machine) -> None:
    results = [result async for result in ORDERS[Order.IN_TURN](plan())]
    a, b = (one.name for one in WORKLOADS[:2])
    assert machine.runs == [
        (name, side, number, 300 + number, 1)
        for number in (0, 1)
        for name in (a, b)
        for side in (Side.OURS, Side.THEIRS)
    ]
    assert [(one.workload, one.side) for one in results] == [one[:2] for one in machine.runs]
    assert not machine.up


async def test_together_both_stay_up_and_take_turns_at_being_first(machine: Machine) -> None:
    results = [result async for result in ORDERS[Order.TOGETHER](plan())]
    there, back = (Side.OURS, Side.THEIRS), (Side.THEIRS, Side.OURS)
    assert machine.runs == [
        (workload.name, side, number, 300 + number, 2)
        for workload in WORKLOADS[:2]
        for number, order in enumerate((there, back))
        for side in order
    ]
    assert len(results) == len(machine.runs)
    assert not machine.up


def test_memory_is_not_measured_beside_another_server(machine: Machine, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    arguments: list[Any] = ["--llama-server", str(model), "--model", str(model), "--rounds", "1"]
    together = [*arguments, "--order", "together"]
    said = CliRunner().invoke(main, [*together, "--workload", "memory"])
    assert said.exit_code == 2 and "memory needs the machine alone" in said.output
    assert CliRunner().invoke(main, together).exit_code == 0
    assert {name for name, *_ in machine.runs} == {one.name for one in WORKLOADS} - {
        "memory",
        "long",
    }


async def test_an_interrupted_run_ends_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __init__(self, *_: object) -> None:
            pass

        async def run(self) -> BenchRun:
            return BenchRun(transcripts=(), is_cut_short=True)

    async def no_counters(_client: object) -> dict[str, float]:
        return {}

    monkeypatch.setattr(measure, "Driver", Interrupted)
    monkeypatch.setattr(measure, "_counters", no_counters)
    monkeypatch.setattr(measure, "_SETTLED_S", 0.0)
    target = BenchTarget(url="http://127.0.0.1:1", endpoint=BenchEndpoint.CHAT)
    subject = Subject(WORKLOADS[0], Side.OURS, ServerAddress("http://127.0.0.1:1", 1), target)
    with pytest.raises(asyncio.CancelledError):
        await subject.loaded(0, 1)
