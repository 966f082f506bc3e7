"""One tenant floods the pool while nine others ask in turn: who gets what, on a simulated clock."""

import itertools
from collections import Counter
from dataclasses import dataclass

from gateway.pool.tasks.block_hashes import fingerprint
from gateway.pool.tasks.spec import TaskSpec
from protocol.errors import TaskError
from protocol.wire.messages import Generate
from protocol.wire.sampling import SamplingParams
from tests.gateway.simulation import Simulation, Speed, Turn, words

N_NORMAL = 9
FLOOD = "flood"
_N_PROMPT, _N_ANSWER = 200, 50
STREAMS = 4
"""Requests that a normal tenant has open at a time: more than its share of the slots."""


def jain(tokens: Counter[str]) -> float:
    """Return Jain's index: 1 is equal shares, 1/n one who has all."""
    n = list(tokens.values())
    return sum(n) ** 2 / (len(n) * sum(one * one for one in n))


@dataclass(frozen=True)
class Outcome:
    """What each tenant got."""

    tokens: Counter[str]
    ttft_s: dict[str, list[float]]
    refused: Counter[str]

    @property
    def jain(self) -> float:
        """Jain's index of the tokens served."""
        return jain(self.tokens)

    def p99_s(self) -> float:
        """The 99th percentile of the normal tenants' time to first token."""
        times = sorted(t for name, ts in self.ttft_s.items() if name != FLOOD for t in ts)
        return times[int(0.99 * (len(times) - 1))]


class Crowd:
    """Tenants before a simulated pool."""

    def __init__(self, *, floods: bool, n_streams: int = STREAMS, duration_s: float) -> None:
        self.pool = Simulation(*[Speed(n_slots=8)] * 2, queue_size=200)
        self.n_streams = n_streams
        self.floods = floods
        self.duration_s = duration_s
        self.outcome = Outcome(Counter(), {}, Counter())
        self._ids = itertools.count(1)

    def run(self) -> Outcome:
        """Let everybody ask until the time is up."""
        for name in (f"normal-{i}" for i in range(N_NORMAL)):
            for _ in range(self.n_streams):
                self.pool.at(0.0, lambda name=name: self._ask(name))  # type: ignore[misc]  # bound at once
        if self.floods:
            for i in range(int(self.duration_s * 50)):
                self.pool.at(i / 50, lambda: self._ask(FLOOD))
        self.pool.run(self.duration_s)
        return self.outcome

    def _ask(self, tenant: str) -> None:
        task_id = next(self._ids)
        turn = Turn(text=words(f"t{task_id}", _N_PROMPT), n_answer=_N_ANSWER)
        turn.ends = lambda turn: self._ended(tenant, turn)
        turn.asked_at = self.pool.now
        task = Generate(prompt=turn.text, params=SamplingParams())
        prefix = fingerprint(task, "m")
        turn.chain = prefix.chain
        spec = TaskSpec(
            task_id=task_id, model="m", tenant=tenant, n_tokens=_N_PROMPT, prefix=prefix
        )
        self.pool.turns[task_id] = turn
        try:
            self.pool._perform(self.pool.pool.submit(spec, self.pool.now))
        except TaskError:
            self.outcome.refused[tenant] += 1
            return
        failed = [one for one in self.pool.turns.values() if one.failed]
        for one in failed:
            one.failed = False
            one.ends(one)

    def _ended(self, tenant: str, turn: Turn) -> None:
        if not turn.first_at:
            self.outcome.refused[tenant] += 1
            return
        self.outcome.tokens[tenant] += _N_PROMPT + _N_ANSWER
        self.outcome.ttft_s.setdefault(tenant, []).append(turn.first_at - turn.asked_at)
        if tenant != FLOOD:
            self._ask(tenant)
