"""A dispatcher with ready workers, and the tasks and messages that its tests need."""

import dataclasses
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from gateway.keys.api_key import KeyLimits
from gateway.pool.dispatch.actions import Action, Assign, Fail, ProceedTask
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.workers.worker import Worker
from protocol.errors import ErrorCode
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Done, Envelope, Failed, Finish, PromptRead, Started, TaskKey


@dataclass
class SimWorker:
    """What a worker really has; the dispatcher's credits must agree with it."""

    key: str
    name: str
    model: str
    n_slots: int
    n_prefetch: int
    is_ready: bool = False
    is_leaving: bool = False
    held: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Attempts without a terminal message, and whether each has started."""


@dataclass
class SimAbsence:
    """The names of workers that are not there: for whose slots tasks wait, and for whose not."""

    lost_at: dict[str, float] = field(default_factory=dict)
    """Names of lost workers; a connection that broke is made anew within 3 s."""
    gone: set[str] = field(default_factory=set)
    """They drain, have drained or are lost for longer, and are not ready again."""

    def lost(self, name: str, now: float) -> None:
        if name not in self.gone:
            self.lost_at[name] = now

    def back(self, name: str) -> None:
        self.lost_at.pop(name, None)
        self.gone.discard(name)

    def given_up(self, now: float) -> set[str]:
        """Take out those that are lost for too long."""
        names = {name for name, lost_at in self.lost_at.items() if now - lost_at >= 3.0}
        for name in names:
            del self.lost_at[name]
        return names


def card(
    n_slots: int = 2, n_prefetch: int = 0, name: str = "m", fingerprint: str = ""
) -> ModelCard:
    return ModelCard(
        name=name,
        path="/m.gguf",
        n_slots=n_slots,
        n_prefetch=n_prefetch,
        n_ctx=512,
        n_ctx_total=512 * n_slots,
        fingerprint=fingerprint,
    )


def may_be_held_back(
    spec: TaskSpec,
    held: Sequence[tuple[str, str]],
    served: Set[tuple[str, str]],
    workers: Iterable[Worker],
) -> bool:
    """Whether a task may have to leave few free slots to other tenants.

    `held` are model and tenant of each attempt that a worker has, `served` those of all so far.
    """
    alike = [worker for worker in workers if worker.model == spec.model]
    n_own = held.count((spec.model, spec.tenant))
    n_others = len({tenant for model, tenant in served if model == spec.model} - {spec.tenant})
    n_slots = sum(worker.n_slots for worker in alike if worker.is_ready)
    n_free = sum(max(0, one.n_slots - one.n_taken) for one in alike if one.has_credit)
    is_above = n_own > 0 and n_others > 0 and (n_own + 1) * (n_others + 1) > n_slots
    return is_above and n_free <= n_others + -(-n_slots // 4)


def dispatcher(
    *workers: str,
    n_slots: int = 1,
    n_prefetch: int = 0,
    queue_size: int = 0,
    settle_s: float = 0.0,
) -> Dispatcher:
    """A dispatcher with these workers ready; a worker's key is its name."""
    one = Dispatcher(queue_size=queue_size, queue_timeout_s=10.0, settle_s=settle_s)
    for name in workers:
        one.worker_hello(name, name, "m")
        one.worker_ready(name, card(n_slots, n_prefetch), 0.0)
    return one


def task(
    task_id: int,
    *,
    tenant: str = "",
    n_tokens: int = 1,
    worker: str = "",
    slot: int = -1,
    model: str = "m",
) -> TaskSpec:
    return TaskSpec(
        task_id=task_id, model=model, tenant=tenant, n_tokens=n_tokens, worker=worker, slot=slot
    )


def call(task_id: int, worker: str = "") -> TaskSpec:
    return TaskSpec(task_id=task_id, model="m", takes_credit=False, worker=worker)


def done(task_id: int, attempt: int = 0, n_predicted: int = 0) -> Envelope:
    return Envelope(TaskKey(task_id, attempt), Done(finish=Finish.EOS, n_predicted=n_predicted))


def broken(task_id: int, attempt: int = 0, code: ErrorCode = ErrorCode.INTERNAL) -> Envelope:
    return Envelope(TaskKey(task_id, attempt), Failed(code=code, message="it is broken"))


def started(task_id: int, *, attempt: int = 0, slot: int = 0, n_prompt: int = 1) -> Envelope:
    return Envelope(TaskKey(task_id, attempt), Started(slot=slot, n_prompt=n_prompt))


def places(actions: Sequence[Action]) -> list[tuple[int, str]]:
    return [(action.task_id, action.worker) for action in actions if isinstance(action, Assign)]


def failures(actions: Sequence[Action]) -> dict[int, ErrorCode]:
    return {a.task_id: a.error.code for a in actions if isinstance(a, Fail)}


def proceed(actions: Sequence[Action]) -> list[tuple[int, str]]:
    return [
        (action.task_id, action.worker) for action in actions if isinstance(action, ProceedTask)
    ]


def pauses(
    pool: Dispatcher, worker: str, task_id: int, attempt: int = 1, now: float = 0.0
) -> list[Action]:
    """Tell that all is read again of an answer that another worker began."""
    pool.started(worker, started(task_id, attempt=attempt), 0.0)
    told = PromptRead(n_read=1, is_paused=True)
    return pool.prompt_cost(worker, TaskKey(task_id, attempt), told, now)


def read(
    pool: Dispatcher, worker: str, task_id: int, *, attempt: int = 0, n_deltas: int = 3
) -> list[Action]:
    """Deliver the first deltas of an attempt, each of one token."""
    key = TaskKey(task_id, attempt)
    pool.started(worker, started(task_id, attempt=attempt), 0.0)
    actions: list[Action] = []
    for _ in range(n_deltas):
        pool.tasks[task_id].answer.tokens.append(5)
        actions += pool.delta_came(worker, key, 0.0)
    return actions


def limited(task_id: int, tenant: str, limits: KeyLimits, **changes: object) -> TaskSpec:
    return dataclasses.replace(task(task_id, tenant=tenant), limits=limits, **changes)  # type: ignore[arg-type]


def measure(pool: Dispatcher, tenant: str, n: int, service_s: float) -> None:
    """Let a worker answer tasks that take this long."""
    for i in range(1000, 1000 + n):
        pool.submit(limited(i, tenant, KeyLimits()), 0.0)
        pool.started("a", started(i), 0.0)
        pool.ended("a", done(i, n_predicted=10), service_s)
