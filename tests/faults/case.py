"""One fault: what is done to a pool under load, and what must be true of it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from gateway.soak.asking import Ending
from gateway.soak.ledger import FaultRow, row_of
from gateway.soak.requests import TrafficShape
from gateway.soak.scene import ExpectedAnswers, PoolShape, Scene, pool_under_load

Inject = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """A row of the fault matrix; nothing may be lost, doubled, wrong or leaked in any."""

    name: str
    """The letter of its group, its number, and what tells several of a number apart."""
    what: str
    inject: Inject
    """Does it to a pool under load; what it expects and is not so goes to `Scene.violations`."""
    pool: PoolShape = PoolShape()
    traffic: TrafficShape | None = None
    n_clients: int = 8
    n_after: int = 24
    """Requests that must still end after the fault, before the load does."""
    n_retries: int = 0
    """Times that a client asks again when its connection was refused or cut."""
    may_refuse: bool = False
    """Clean errors are allowed: `what` says which."""
    compares: bool = True
    """False: only the ends are looked at; `what` says why."""
    is_last: bool = False
    """The pool is gone afterwards: no request follows, and no leak is looked for."""
    may_cut: bool = False
    """What runs is cut, for the whole service ends at once."""
    needs_root: bool = False
    """It mounts something or sets limits of memory; otherwise it is left out."""
    is_shared: bool = False
    """It runs in `make test` too."""

    def __str__(self) -> str:
        return self.name

    def passes(self, row: FaultRow) -> bool:
        """Return whether the counts are as they must be."""
        allowed = {Ending.LOST: self.may_cut, Ending.REFUSED: self.may_refuse}
        counts = {ending: n for ending, n in row.counts.items() if not allowed.get(ending)}
        return replace(row, counts=Counter(counts)).is_well()


async def at_a_random_token(scene: Scene) -> None:
    """Wait for a random number of tokens."""
    if any(request.streams for request in scene.load.requests):
        await scene.load.pieces(scene.rng.randint(40, 240))
    else:  # tokens of whole answers are not seen
        await asyncio.sleep(scene.rng.uniform(0.3, 1.5))


async def run_case(case: FaultCase, expected: ExpectedAnswers) -> FaultRow:
    """Start a pool and its load, inject the fault at a random token, and count."""
    seed = expected.seed
    async with pool_under_load(case.pool, expected, seed=seed, traffic=case.traffic) as scene:
        load = scene.load
        load.n_clients, load.n_retries = case.n_clients, case.n_retries
        load.compares = case.compares
        before = scene.pool.descriptors()
        load.start(seed)
        await at_a_random_token(scene)
        await case.inject(scene)
        if not case.is_last:
            await load.answers(case.n_after)
        outcomes = await load.stop()
        leaks = [] if case.is_last else await scene.pool.leaks(before)
        return row_of(case.name, case.what, outcomes, leaks, scene.violations)
