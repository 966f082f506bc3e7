"""Clients that send one request after the other, and the answers that they must get."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from gateway.bench.client.connection import Client
from gateway.soak.asking import Ending, RequestOutcome, ask
from gateway.soak.pool import PoolFailed
from gateway.soak.requests import SoakRequest

Answers = Mapping[str, Mapping[str, str]]
"""Name of a request to the parts of its right answer."""

_RETRY_AFTER_S = 0.1
"""Pause of a client whose request was not answered, in seconds."""


async def reference_answers(url: str, requests: Sequence[SoakRequest], at_once: int = 4) -> Answers:
    """Ask each request once while nothing is wrong; raises `PoolFailed` if one is not answered."""
    client, found, todo = Client(url), {}, iter(requests)

    async def take_turns() -> None:
        for request in todo:
            outcome = await ask(client, request)
            if outcome.ending is not Ending.ANSWERED:
                raise PoolFailed(f"{request.name} without a fault: {outcome.ending} {outcome.why}")
            found[request.name] = outcome.parts

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(take_turns())
    return found


class SoakLoad:
    """Clients that send one request after the other, from `start` to `stop`."""

    def __init__(self, url: str, requests: Sequence[SoakRequest], answers: Answers) -> None:
        self.outcomes: list[RequestOutcome] = []
        self.n_pieces = 0
        self.n_started = 0
        self.n_clients = 8
        self.n_retries = 0
        """Times that a client may ask again when its connection was refused or cut."""
        self.compares = True
        """Whether texts must be those of the unbroken run."""
        self._url = url
        self.requests = requests
        self.expected = answers
        self._is_over = False
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, seed: int) -> None:
        """Begin; each client asks the requests in an order of its own."""
        for number in range(self.n_clients):
            order = self._order(random.Random(f"{seed} {number}"))  # noqa: S311  no secret
            self._tasks.append(asyncio.create_task(self._one_after_another(order)))

    async def stop(self) -> list[RequestOutcome]:
        """Begin no more requests, wait for those that run, and return how all have ended."""
        self._is_over = True
        await asyncio.gather(*self._tasks)
        return self.outcomes

    async def pieces(self, n: int, within_s: float = 60.0) -> None:
        """Wait until `n` more pieces of streams have come; raises `PoolFailed` after `within_s`."""
        goal = self.n_pieces + n
        await self._until(lambda: self.n_pieces >= goal, within_s)

    async def answers(self, n: int, within_s: float = 120.0) -> None:
        """Wait until `n` more requests have ended; raises `PoolFailed` after `within_s`."""
        goal = len(self.outcomes) + n
        await self._until(lambda: len(self.outcomes) >= goal, within_s)

    async def _until(self, is_so: Callable[[], bool], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise PoolFailed(f"the load stands still: {self}") from None

    def _order(self, rng: random.Random) -> Iterator[SoakRequest]:
        while True:
            yield from rng.sample(self.requests, len(self.requests))

    async def _one_after_another(self, order: Iterator[SoakRequest]) -> None:
        client = Client(self._url)
        for request in order:
            if self._is_over:
                return
            self.n_started += 1
            outcome = await self._ask_until_answered(client, request)
            if self.compares:
                outcome.compare(self.expected[request.name])
            self.outcomes.append(outcome)
            self._changed.set()
            if outcome.ending is not Ending.ANSWERED:
                await asyncio.sleep(_RETRY_AFTER_S)  # do not retry at once in a pool that refuses

    async def _ask_until_answered(self, client: Client, request: SoakRequest) -> RequestOutcome:
        for _ in range(self.n_retries):
            outcome = await self._ask(client, request)
            if outcome.ending is not Ending.LOST:
                return outcome
            await asyncio.sleep(_RETRY_AFTER_S)
        return await self._ask(client, request)

    async def _ask(self, client: Client, request: SoakRequest) -> RequestOutcome:
        return await ask(client, request, on_piece=self._note_piece)

    def _note_piece(self) -> None:
        self.n_pieces += 1
        self._changed.set()
