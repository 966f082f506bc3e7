"""Workers that are killed while they answer: what is lost, how texts differ, how long it takes."""

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.admin_socket import ask_admin
from benchmarks.fleet.partings import Parting, PartingJudge
from benchmarks.fleet.tally import Tally, latencies
from gateway.soak.asking import Ending, RequestOutcome
from gateway.soak.load import reference_answers
from gateway.soak.requests import KINDS
from gateway.soak.scene import ExpectedAnswers, PoolShape, Scene, pool_under_load
from tests.faults.case import at_a_random_token

_KILLS_A_POOL = 6
"""Two workers may die so often together before the supervisor would set one aside."""
_STREAMS = tuple(kind for kind in KINDS if "whole" not in kind and kind != "embeddings")
_ROOM = {"n_slots": 12, "n_ctx": 12 * 2048}
"""One worker alone has a slot for each answer: eight streams, of which some have two choices."""


@dataclass(slots=True)
class Gaps:
    """What silences of streams whose worker was killed are made of, in seconds."""

    whole: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """The longest silence of every other stream."""
    seen: list[float] = field(default_factory=list)
    """From the signal until the gateway knows that the worker is lost."""
    waited: list[float] = field(default_factory=list)
    """From there until another worker has the task."""
    read: list[float] = field(default_factory=list)
    """From there until its first token: prompt and text are read again, among other streams."""
    back: list[float] = field(default_factory=list)
    """From the signal until the worker serves again."""

    def lines(self) -> list[str]:
        """Print them."""
        return [
            latencies("longest gap of streams whose worker was killed", self.whole),
            latencies("    until the gateway knows", self.seen),
            latencies("    until another worker has the task", self.waited),
            latencies("    until its first token", self.read),
            latencies("longest gap of all other streams", self.others),
            latencies("from the kill until the worker is back", self.back),
        ]


async def kills(args: argparse.Namespace) -> Tally:
    """SIGKILL of one of two workers under 8 streams, at random tokens."""
    tally, gaps, n_done = Tally(), Gaps(), 0
    expected = ExpectedAnswers(args.seed)
    parted: list[Parting | None] = []
    worker = _ROOM if args.engine == "model" else {}
    while n_done < args.times:
        shape = PoolShape(engine=args.engine, worker=worker)
        seed = args.seed + args.first + n_done
        async with pool_under_load(shape, expected, seed=seed) as scene:
            n_here = min(_KILLS_A_POOL, args.times - n_done)
            await _kill(scene, n_here, seed, gaps)
            n_done += n_here
            tally.outcomes += scene.load.outcomes
            await _attempts(scene, gaps)
            parted += await _judge(scene)
    tally.notes.append(f"{n_done} kills")
    tally.notes += gaps.lines()
    tally.notes += _verdicts(parted)
    _forgive(tally, parted)
    return tally


async def _kill(scene: Scene, n: int, seed: int, gaps: Gaps) -> None:
    load, struck = scene.load, list[tuple[float, str]]()
    load.requests = [one for one in load.requests if one.kind in _STREAMS]
    load.start(seed)
    for number in range(n):
        await at_a_random_token(scene)
        name, since = sorted(scene.pool.workers)[number % 2], len(scene.pool.lines)
        struck.append((time.perf_counter(), name))
        scene.signal(name)
        await scene.pool.wait_for(rf"worker lost worker=(\S+/)?{name} ", since=since)
        gaps.seen.append(time.perf_counter() - struck[-1][0])
        await scene.back(name, since=since, within_s=60)
        gaps.back.append(time.perf_counter() - struck[-1][0])
    await load.stop()
    for one in load.outcomes:
        _sort_gap(one, struck, gaps)


def _sort_gap(one: RequestOutcome, struck: Sequence[tuple[float, str]], gaps: Gaps) -> None:
    """Note the longest silence of a stream, with those that lost a worker or with the others."""
    if len(one.arrivals_s) < 2:
        return
    worker = one.headers.get("x-llamapool-worker", "").rpartition("/")[2]
    is_hit = any(
        one.arrivals_s[0] < at_s < one.arrivals_s[-1] and name == worker for at_s, name in struck
    )
    (gaps.whole if is_hit else gaps.others).append(one.longest_gap_s)


async def _attempts(scene: Scene, gaps: Gaps) -> None:
    """Look at what the gateway remembers of the requests that had more than one attempt."""
    for outcome in scene.load.outcomes:
        identity = outcome.headers.get("x-request-id", "")
        answer = await ask_admin(scene.pool, f"/admin/requests/{identity}")
        rows = answer.get("requests", ())
        tasks = [task for row in rows for task in row.get("tasks", ())]
        for attempts in (task["attempts"] for task in tasks):
            for before, after in itertools.pairwise(attempts):
                if None not in (before["ended_s"], after["first_token_s"]):
                    gaps.waited.append(after["assigned_s"] - before["ended_s"])
                    gaps.read.append(after["first_token_s"] - after["assigned_s"])


async def _judge(scene: Scene) -> list[Parting | None]:
    """Judge every text that is not the one of the unbroken run, now that nothing else runs."""
    wrong = [one for one in scene.load.outcomes if one.ending is Ending.WRONG]
    judge, found = PartingJudge(scene.pool.url), list[Parting | None]()
    for one in wrong:
        right = scene.load.expected[one.request.name]
        parting = await judge.judge(one, right)
        if parting is not None and not parting.is_near:
            # The unbroken run had company too: alone the model may say what came now.
            alone = await reference_answers(scene.pool.url, [one.request], at_once=1)
            again = await judge.judge(one, alone[one.request.name])
            parting = again if again is not None and again.is_near else parting
        found.append(parting)
    return found


def _verdicts(parted: Sequence[Parting | None]) -> list[str]:
    known = [one for one in parted if one is not None]
    counts = Counter(("drawn" if one.is_drawn else "greedy", one.is_near) for one in known)
    lines = [
        f"texts that part from the unbroken run: {len(parted)}, "
        f"{counts['greedy', True]} greedy and {counts['drawn', True]} drawn ones by rounding, "
        f"{counts['greedy', False] + counts['drawn', False]} otherwise, "
        f"{len(parted) - len(known)} not judged"
    ]
    worst = sorted(known, key=lambda one: one.distance, reverse=True)
    return lines + [f"    {one}" for one in worst[:6]]


def _forgive(tally: Tally, parted: Sequence[Parting | None]) -> None:
    """Count what rounding explains as answered."""
    near = Counter(one.request for one in parted if one is not None and one.is_near)
    for one in tally.outcomes:
        if one.ending is Ending.WRONG and near[one.request.name]:
            near[one.request.name] -= 1
            one.ending = Ending.ANSWERED
