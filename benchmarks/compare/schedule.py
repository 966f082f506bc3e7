"""The order in which the two servers are loaded: each alone on the machine, or both started."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.compare.measure import Result, Subject, opened
from benchmarks.compare.servers import Flags, Side
from benchmarks.compare.workloads import Workload


class Order(StrEnum):
    """How the runs of a comparison follow each other."""

    IN_TURN = "in-turn"
    """A fresh server each run, and nothing else on the machine."""
    TOGETHER = "together"
    """Both servers stay up, one of them is loaded. The two runs of a round are seconds apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is compared."""

    workloads: Sequence[Workload]
    binary: Path
    flags: Flags
    rounds: int
    seed: int

    def texts(self, number: int) -> int:
        """Return the seed of a round's texts, which are the same for both servers."""
        return self.seed * 100 + number


async def in_turn(plan: Plan) -> AsyncIterator[Result]:
    """Run every workload once on each, then the next round."""
    for number in range(plan.rounds):
        for workload in plan.workloads:
            for side in Side:
                async with opened(workload, side, plan.binary, plan.flags) as subject:
                    result = await subject.loaded(number, plan.texts(number))
                yield result


async def together(plan: Plan) -> AsyncIterator[Result]:
    """Run all rounds of a workload, then the next one; each round begins with the other server."""
    for workload in plan.workloads:
        async with contextlib.AsyncExitStack() as stack:
            subjects: list[Subject] = []
            for side in Side:
                opening = opened(workload, side, plan.binary, plan.flags)
                subjects.append(await stack.enter_async_context(opening))
            for number in range(plan.rounds):
                for subject in subjects[:: -1 if number % 2 else 1]:
                    yield await subject.loaded(number, plan.texts(number))


ORDERS: dict[Order, Callable[[Plan], AsyncIterator[Result]]] = {
    Order.IN_TURN: in_turn,
    Order.TOGETHER: together,
}
