"""A long run: mixed load, a fault every few seconds, and in the end every request accounted for."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.soak.faults import SOAK_FAULTS, SoakFault
from gateway.soak.ledger import FaultRow, row_of
from gateway.soak.scene import FAR, ExpectedAnswers, PoolShape, Scene, pool_under_load

_MAX_DEATHS, _WINDOW_S = 3, 300.0
"""Maximum deaths of a process within a window; the supervisor quarantines it after five."""
_GROWTH_MIB_PER_MINUTE = 1.0
"""Growth of a process above which it leaks, in MiB a minute."""
_TABLES_MIB = 16.0
"""Room for tables that are bounded and fill with use, such as the last requests."""
_WARM_UP_S = 60.0
"""Of each process: one that replaces a killed one starts small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPlan:
    """How long, how often, and on what."""

    seconds: float = 60.0
    seed: int = 0
    n_between: int = 10
    """Requests that end between two faults."""
    n_clients: int = 8
    shape: PoolShape = PoolShape(n_workers=3, worker={"stall_s": 3.0}).with_far()
    faults: tuple[SoakFault, ...] = SOAK_FAULTS
    n_faults: int = 0
    """Minimum number of faults; the run goes on past `seconds` until it is reached."""


@dataclass(slots=True)
class Deaths:
    """When each process was killed, so that none is killed too often."""

    at_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def may_die(self, name: str, now_s: float) -> bool:
        """Return whether a process may be killed again."""
        recent = [at for at in self.at_s[name] if now_s - at < _WINDOW_S]
        self.at_s[name] = recent
        return len(recent) < _MAX_DEATHS


async def soak(plan: SoakPlan, tell: Callable[[str], object]) -> list[FaultRow]:
    """Run it; returns a row for each kind of fault, and one for the whole."""
    expected = ExpectedAnswers(plan.seed)
    async with pool_under_load(plan.shape, expected, seed=plan.seed) as scene:
        before = scene.pool.descriptors()
        scene.load.n_clients = plan.n_clients
        scene.load.n_retries = 1  # the death of a gateway cuts connections
        scene.load.start(plan.seed)
        rows, memory = await _faults(plan, scene, tell)
        outcomes = await scene.load.stop()
        leaks = [*await scene.pool.leaks(before), *memory]
        return [*rows, row_of("all", "the whole run", outcomes, leaks, scene.violations)]


async def _faults(
    plan: SoakPlan, scene: Scene, tell: Callable[[str], object]
) -> tuple[list[FaultRow], list[str]]:
    """Inject faults until the time is over and there were enough."""
    deaths, started_s = Deaths(), time.monotonic()
    marks: dict[str, list[tuple[int, int]]] = defaultdict(list)
    growth = Growth()
    n_done = 0
    while (passed_s := time.monotonic() - started_s) < plan.seconds or n_done < plan.n_faults:
        await scene.load.pieces(scene.rng.randint(10, 200))
        fault, name = _drawn(plan, scene, deaths)
        n_before = len(scene.load.outcomes)
        await fault.inject(scene, name)
        if fault.kills:
            deaths.at_s[name].append(time.monotonic())
        await scene.load.answers(plan.n_between)
        marks[fault.name].append((n_before, len(scene.load.outcomes)))
        n_done += 1
        bad = [
            outcome for outcome in scene.load.outcomes[n_before:] if outcome.ending != "answered"
        ]
        tell(f"{passed_s:6.0f} s  {fault.what} ({name}): {len(bad)} not answered")
        for wrong in bad[:4]:
            tell(f"          {wrong.request.name} {wrong.ending}: {wrong.why}")
        growth.note(_memory(scene), time.monotonic())
    outcomes = scene.load.outcomes
    rows = [
        row_of(
            fault.name,
            f"{fault.what}, {len(marks[fault.name])} times",
            [outcome for start, end in marks[fault.name] for outcome in outcomes[start:end]],
            (),
        )
        for fault in plan.faults
        if marks[fault.name]
    ]
    return rows, growth.leaks()


def _drawn(plan: SoakPlan, scene: Scene, deaths: Deaths) -> tuple[SoakFault, str]:
    """Draw a fault and its victim; one that may not die is spared."""
    is_fake = plan.shape.engine == "fake"
    while True:
        fault = scene.rng.choice(plan.faults)
        names = scene.pool.gateways if fault.hits_gateway else scene.pool.workers
        name = FAR if fault.needs_gate else scene.rng.choice(names)
        if (fault.needs_fake and not is_fake) or (fault.needs_gate and scene.gate is None):
            continue
        if not fault.kills or deaths.may_die(name, time.monotonic()):
            return fault, name


def _memory(scene: Scene) -> dict[int, tuple[str, float]]:
    return {scene.pool.pid_of(name): (name, mib) for name, mib in scene.pool.resident_mib().items()}


class Growth:
    """Memory of each process, from the end of its warm-up on."""

    def __init__(self) -> None:
        self._seen_s: dict[int, float] = {}
        self._first: dict[int, tuple[float, float, str]] = {}
        self._last: dict[int, tuple[float, float]] = {}

    def note(self, memory: Mapping[int, tuple[str, float]], now_s: float) -> None:
        """Record name and resident MiB of each process, by its id."""
        for pid, (name, mib) in memory.items():
            if now_s - self._seen_s.setdefault(pid, now_s) >= _WARM_UP_S:
                self._first.setdefault(pid, (now_s, mib, name))
                self._last[pid] = now_s, mib

    def leaks(self) -> list[str]:
        """Return the processes that grew too much and too fast, over a minute or more."""
        found = []
        for pid, (first_s, first_mib, name) in self._first.items():
            last_s, mib = self._last[pid]
            minutes, growth = (last_s - first_s) / 60, mib - first_mib
            if minutes > 1 and growth > max(_TABLES_MIB, minutes * _GROWTH_MIB_PER_MINUTE):
                found.append(f"{name} grew by {growth:.1f} MiB in {minutes:.1f} minutes")
        return found
