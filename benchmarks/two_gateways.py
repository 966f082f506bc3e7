"""Two gateways on the same four workers, on a simulated clock: how much of the caches they use."""

from collections.abc import Sequence
from typing import Any, cast

from gateway.pool.dispatch.actions import Action
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.spec import TaskSpec
from protocol.wire.cached import Cached
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Envelope, TaskKey
from tests.gateway.simulation import Conversation, Simulation, Speed, words

N_WORKERS = 4
CONVERSATIONS = 40
TURNS = 6


class Gateways:
    """Several dispatchers as one: a request goes to any, a worker speaks to all."""

    def __init__(self, n: int, slots: int) -> None:
        self._all = [Dispatcher(queue_size=1000) for _ in range(n)]
        self._slots = slots // n
        """Each has its share of a worker's slots; grants would lend it those of the other too."""

    def _of(self, task_id: int) -> Dispatcher:
        return self._all[task_id % len(self._all)]

    @property
    def n_tasks(self) -> int:
        return sum(one.n_tasks for one in self._all)

    def worker_hello(self, key: str, name: str, model: str) -> None:
        for one in self._all:
            one.worker_hello(key, name, model)

    def worker_ready(self, key: str, card: ModelCard, now: float) -> list[Action]:
        own = ModelCard(
            name=card.name,
            path="",
            n_slots=self._slots,
            n_prefetch=card.n_prefetch,
            n_ctx=card.n_ctx,
            n_ctx_total=card.n_ctx_total,
        )
        return [action for one in self._all for action in one.worker_ready(key, own, now)]

    def submit(self, spec: TaskSpec, now: float) -> list[Action]:
        return self._of(spec.task_id).submit(spec, now)

    def expire(self, now: float) -> list[Action]:
        return [action for one in self._all for action in one.expire(now)]

    def started(self, key: str, envelope: Envelope, now: float) -> Any:
        return self._of(envelope.task.id).started(key, envelope, now)

    def delta_came(self, key: str, lease: TaskKey, now: float) -> Any:
        return self._of(lease.id).delta_came(key, lease, now)

    def ended(self, key: str, envelope: Envelope, now: float) -> list[Action]:
        return self._of(envelope.task.id).ended(key, envelope, now)

    def cached(self, key: str, message: Cached) -> None:
        for one in self._all:
            one.cached(key, message)


def cached_tokens(n_gateways: int) -> int:
    """Play conversations under one system prompt; return the tokens found in caches."""
    speed = Speed(read_per_s=5000, write_per_s=100)
    simulation = Simulation()
    simulation.pool = cast(Dispatcher, Gateways(n_gateways, speed.n_slots))
    for i in range(N_WORKERS):
        simulation.join(f"w{i}", speed)
    talks = [
        Conversation(simulation, f"c{i}", system=words("system", 600), n_turns=TURNS)
        for i in range(CONVERSATIONS)
    ]
    for i, one in enumerate(talks):
        simulation.at(10.0 * i / CONVERSATIONS, one.ask)
    simulation.run()
    return _found(talks)


def _found(talks: Sequence[Conversation]) -> int:
    return sum(turn.n_cached for one in talks for turn in one.turns)
