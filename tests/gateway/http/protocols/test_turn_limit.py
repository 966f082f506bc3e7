"""Few requests begin in one turn of the event loop, the others in their order in later ones."""

import asyncio
from collections import Counter
from pathlib import Path

from gateway.http.protocols.turn_limit import TurnLimit
from tests.gateway.http.test_connections import HEALTH, connect, hang_up
from tests.gateway.inprocess import LIMIT_S, running


class Turns:
    """Tasks that enter, and in which turn each did."""

    def __init__(self, limit: TurnLimit) -> None:
        self.limit = limit
        self.now = 0
        self.entered: list[tuple[int, int]] = []
        """Number of the task, and the turn."""

    async def enter(self, number: int) -> None:
        await self.limit.enter()
        self.entered.append((number, self.now))

    async def until_all_have(self, *tasks: asyncio.Task[None]) -> None:
        while not all(task.done() for task in tasks):
            self.now += 1
            await asyncio.sleep(0)


async def test_few_go_on_in_a_turn_and_the_others_in_their_order() -> None:
    turns = Turns(TurnLimit(3))
    await turns.until_all_have(*(asyncio.create_task(turns.enter(i)) for i in range(10)))
    assert [number for number, _ in turns.entered] == list(range(10))
    assert [*Counter(turn for _, turn in turns.entered).values()] == [3, 3, 3, 1]


async def test_who_comes_later_goes_behind_those_that_wait() -> None:
    turns = Turns(TurnLimit(1))
    first = [asyncio.create_task(turns.enter(i)) for i in range(3)]
    await asyncio.sleep(0)
    await turns.until_all_have(*first, asyncio.create_task(turns.enter(3)))
    assert [number for number, _ in turns.entered] == [0, 1, 2, 3]


async def test_who_is_cancelled_takes_no_place() -> None:
    turns = Turns(TurnLimit(1))
    tasks = [asyncio.create_task(turns.enter(i)) for i in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await turns.until_all_have(*tasks)
    assert [number for number, _ in turns.entered] == [0, 3]
    assert repr(turns.limit) == "<TurnLimit n=1 waiting=0>"
    await asyncio.wait_for(turns.limit.enter(), LIMIT_S)


async def test_of_many_requests_few_are_answered_in_a_turn(tmp_path: Path) -> None:
    """A stream waited for all that had come: 200 ms beside 300 clients."""
    async with running(tmp_path) as gateway:
        clients = [await connect(gateway) for _ in range(120)]

        def n_answered() -> int:
            return sum(gateway.metrics.http_statuses.values())

        at_once, n_before = 0, n_answered()
        for _, writer in clients:
            writer.write(HEALTH)
        async with asyncio.timeout(LIMIT_S):
            while n_before < len(clients):
                await asyncio.sleep(0)
                at_once, n_before = max(at_once, n_answered() - n_before), n_answered()
        await hang_up(*clients)
        assert at_once <= 8
