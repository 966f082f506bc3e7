"""Random events under the limits of keys: every task gets one end, and every count comes back."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.keys.api_key import NO_LIMITS, KeyLimits, PriorityClass
from gateway.pool.dispatch.actions import Action, Assign, CancelTask, Deliver, Fail
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import TaskState
from gateway.pool.tenants.tenant_concurrency import ConcurrencyElsewhere
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Done, Envelope, Failed, Finish, Started, TaskKey
from tests.examples import examples
from tests.gateway.dispatching import card

QUEUE_SIZE, TIMEOUT_S = 3, 10.0
MODELS, WORKERS = ("m", "n"), {"a": "m", "b": "m", "c": "n"}
KEYS = {
    "one": KeyLimits(concurrent=1, tokens_per_minute=400),
    "two": KeyLimits(concurrent=2, tokens_per_day=100_000),
    "low": KeyLimits(concurrent=1, priority=PriorityClass.LOW),
    "high": KeyLimits(priority=PriorityClass.HIGH, tokens_per_minute=10_000),
    "free": NO_LIMITS,
}
_REFUSED = {ErrorCode.OVERLOADED, ErrorCode.RATE_LIMITED, ErrorCode.QUOTA_EXCEEDED}


class LimitMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.settled: list[int] = []
        self.unloaded: set[str] = set()
        self.pool = Dispatcher(
            queue_size=QUEUE_SIZE,
            queue_timeout_s=TIMEOUT_S,
            on_settled=lambda task: self.settled.append(task.task_id),
        )
        self.now, self.n_ids = 0.0, 0
        self.limits = dict(KEYS)
        self.ends: Counter[int] = Counter()
        self.open: set[int] = set()
        """Tasks whose clients wait."""
        self.taken: list[int] = []
        self.at: dict[str, list[tuple[int, int]]] = {}
        """Attempts that each worker has still to end."""
        for name in WORKERS:
            self.joins(name)

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Assign(worker, task_id, attempt, _):
                    self.at[worker].append((task_id, attempt))
                case CancelTask(worker, task_id, attempt):
                    assert (task_id, attempt) in self.at[worker]
                case Deliver(envelope):
                    self.end_of(envelope.task.id)
                case Fail(task_id, _):
                    self.end_of(task_id)

    def end_of(self, task_id: int) -> None:
        self.open.remove(task_id)
        self.ends[task_id] += 1

    def depths(self) -> dict[str, int]:
        return self.pool.queue.depths()

    # ---- what may happen ------------------------------------------------------------------

    @rule(
        n=st.integers(1, 6),
        tenant=st.sampled_from(sorted(KEYS)),
        model=st.sampled_from(MODELS),
        sizes=st.tuples(st.integers(1, 150), st.sampled_from((None, 0, 50, 10_000))),
        priority=st.integers(-1, 1),
        within_s=st.sampled_from((float("inf"), float("inf"), 0.5)),
        where=st.sampled_from(("", "", "", "call", "a", "b")),
    )
    def submit(self, n: int, **asked: Any) -> None:
        for _ in range(n):
            self.submit_one(**asked)

    def submit_one(
        self,
        *,
        tenant: str,
        model: str,
        sizes: tuple[int, int | None],
        priority: int,
        within_s: float,
        where: str,
    ) -> None:
        pinned = WORKERS.get(where) == model
        self.n_ids += 1
        spec = TaskSpec(
            task_id=self.n_ids,
            model=model,
            tenant=tenant,
            limits=self.limits[tenant],
            n_tokens=sizes[0],
            n_answer=sizes[1],
            priority=priority,
            start_within_s=within_s,
            takes_credit=where != "call",
            worker=where if pinned else "",
            slot=0 if pinned else -1,
        )
        before, known = self.depths().get(model, 0), set(self.pool.tasks)
        try:
            actions = self.pool.submit(spec, self.now)
        except TaskError as error:
            is_gone = model in self.unloaded and model not in map(WORKERS.get, self.at)
            assert error.code in _REFUSED or (is_gone and error.code is ErrorCode.UNAVAILABLE)
            assert set(self.pool.tasks) == known
            return
        self.taken.append(spec.task_id)
        self.open.add(spec.task_id)
        self.perform(actions)
        assert self.depths()[model] <= max(QUEUE_SIZE, before)

    @rule(data=st.data())
    @precondition(lambda self: self.open)
    def cancel(self, data: st.DataObject) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.open)))
        self.end_of(task_id)
        self.perform(self.pool.cancel(task_id, self.now))

    def holding(self) -> list[tuple[str, int, int]]:
        return [(key, *attempt) for key, has in self.at.items() for attempt in has]

    @rule(data=st.data())
    @precondition(lambda self: self.holding())
    def started(self, data: st.DataObject) -> None:
        key, task_id, attempt = data.draw(st.sampled_from(self.holding()))
        message = Envelope(TaskKey(task_id, attempt), Started(slot=0, n_prompt=7))
        if self.pool.started(key, message, self.now) and data.draw(st.booleans()):
            self.pool.tasks[task_id].answer.tokens.append(1)
            self.perform(self.pool.delta_came(key, TaskKey(task_id, attempt), self.now))

    @rule(data=st.data(), fails=st.sampled_from((False, False, True)))
    @precondition(lambda self: self.holding())
    def ended(self, data: st.DataObject, fails: bool) -> None:
        self.end(*data.draw(st.sampled_from(self.holding())), fails=fails)

    def end(self, key: str, task_id: int, attempt: int, *, fails: bool = False) -> None:
        self.at[key].remove((task_id, attempt))
        done = Done(finish=Finish.EOS, n_prompt=7, n_predicted=5)
        message = Failed(code=ErrorCode.INTERNAL, message="") if fails else done
        envelope = Envelope(TaskKey(task_id, attempt), message)
        self.perform(self.pool.ended(key, envelope, self.now))

    @rule(name=st.sampled_from(sorted(WORKERS)))
    def joins(self, name: str) -> None:
        if name not in self.at:
            self.at[name] = []
            self.unloaded.discard(WORKERS[name])
            self.pool.worker_hello(name, name, WORKERS[name])
            told = card(2, name=WORKERS[name])
            self.perform(self.pool.worker_ready(name, told, self.now))

    @rule(data=st.data(), died=st.booleans())
    @precondition(lambda self: self.at)
    def lost(self, data: st.DataObject, died: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.at)))
        del self.at[key]
        self.perform(self.pool.worker_lost(key, self.now, died=died))

    @rule(data=st.data())
    @precondition(lambda self: self.at)
    def leaves(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.at)))
        self.perform(self.pool.worker_leaves(key, self.now))

    @rule(model=st.sampled_from(MODELS), is_sure=st.sampled_from((True, False, False)))
    def abandon(self, model: str, is_sure: bool) -> None:
        if is_sure:
            self.unloaded.add(model)
            self.perform(self.pool.abandon(model))

    @rule(seconds=st.sampled_from((0.1, 0.5, 1.0, 2.0, TIMEOUT_S, 61.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.pool.expire(self.now))

    @rule(tenant=st.sampled_from(("one", "two")), n=st.integers(0, 3))
    def limit_changes(self, tenant: str, n: int) -> None:
        self.limits[tenant] = replace(self.limits[tenant], concurrent=n)

    @rule(tenant=st.sampled_from(("one", "two")), n=st.integers(0, 3))
    def others_have(self, tenant: str, n: int) -> None:
        self.pool.queue.share_concurrency({tenant: ConcurrencyElsewhere(n, 1)} if n else {})
        self.perform(self.pool.expire(self.now))

    # ---- what always holds ----------------------------------------------------------------

    @invariant()
    def a_task_waits_or_runs_until_its_one_end(self) -> None:
        live = {i for i, task in self.pool.tasks.items() if task.state is not TaskState.CANCELLED}
        assert live == self.open
        assert all(self.ends[i] == (i not in self.open) for i in self.taken)

    @invariant()
    def what_is_counted_for_a_key_is_what_it_has(self) -> None:
        tasks = self.pool.tasks.values()
        running = Counter(
            task.spec.tenant
            for task in tasks
            if task.spec.limits.concurrent and task.state is not TaskState.WAITING
        )
        counted = self.pool.queue.concurrency.n_tasks
        assert all(counted[tenant] >= n for tenant, n in running.items())
        limited = Counter(task.spec.tenant for task in tasks if task.spec.limits.concurrent)
        assert all(0 < n <= limited[tenant] for tenant, n in counted.items())

    def teardown(self) -> None:
        for name in WORKERS:
            self.joins(name)
        for _ in range(3):
            while holding := self.holding():
                self.end(*holding[0])
            self.now += 2 * TIMEOUT_S
            self.perform(self.pool.expire(self.now))
        assert not self.open
        assert not self.pool.tasks
        assert sorted(self.settled) == self.taken
        assert self.pool.queue.concurrency.n_tasks == {}
        assert not self.pool.queue.ids
        assert not any(self.depths().values())
        assert not self.pool.queue.contested()
        assert "'" not in repr(self.pool.placement.shares)  # no tenant has a slot
        assert all(not account.reserved for account in self.pool.allowances._accounts.values())


TestLimits = LimitMachine.TestCase
TestLimits.settings = examples(150, stateful_step_count=50)
