"""The properties of the dispatcher with prompts that some workers have in their cache.

Prompts may now be kept for the worker that knows them, or let others of their tenant go first; but
not for long, never beside a free slot without a reason, and never for a worker that is gone.
"""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, multiple, precondition, rule

from gateway.pool.tasks.spec import TaskSpec
from protocol.errors import TaskError
from tests.examples import examples
from tests.gateway.chains import Speaker, prefix
from tests.gateway.pool.dispatch.test_dispatcher_properties import (
    TIMEOUT_S,
    DispatcherMachine,
)

MAX_BLOCKS = 20
"""Fewer than the prompts of all tasks have."""
TEXTS = ("", "aaaa", "aaaaaaaa", "aaaabbbb", "bbbbbb", "cc")
LONGEST_S = TIMEOUT_S / 4
"""Longest time for which a task is reserved, or lets others go first."""


class RoutedMachine(DispatcherMachine):
    """The same machine, with prompts that share beginnings."""

    def __init__(self) -> None:
        super().__init__()
        self.pool.routing.index.max_blocks = MAX_BLOCKS
        self.passed_at: dict[int, float] = {}
        self.held: dict[str, Speaker] = {}

    @initialize(n_slots=st.integers(1, 2), n_prefetch=st.integers(0, 1))
    def two_workers(self, n_slots: int, n_prefetch: int) -> None:
        """Begin with two ready workers."""
        for name in ("a", "b"):
            self.hello(name, "m", n_slots, n_prefetch)
        for worker in list(self.workers.values()):
            self.open(worker)

    def is_ahead(self, task_id: int, spec: TaskSpec) -> bool:
        """Whether an earlier task was passed over for longer than it may be."""
        if not super().is_ahead(task_id, spec):
            return False
        other = self.specs[task_id]
        if not other.prefix.chain:  # it may only be kept for the worker of its session
            goes_in_this_turn = self.pool.tasks[task_id].worker
            return not goes_in_this_turn and task_id not in self.pool.placement.deferral.ids
        since = self.passed_at.setdefault(task_id, self.now)
        return self.now - since > 2 * LONGEST_S

    @rule(
        target=DispatcherMachine.tasks,
        model=st.sampled_from("mmmmmmn"),
        tenant=st.sampled_from("xy"),
        texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4),
        session=st.integers(0, 3),
        pin=st.sampled_from((None, None, None, None, 0)),
    )
    def submit_prompts(
        self, model: str, tenant: str, texts: list[str], session: int, pin: int | None
    ) -> object:
        ids = (self.submit_prompt(model, tenant, text, session, pin) for text in texts)
        return multiple(*filter(None, ids))

    def submit_prompt(
        self, model: str, tenant: str, text: str, session: int, pin: int | None
    ) -> int | None:
        worker, slot = ("", -1) if pin is None else self.pool.slots.locate(model, pin)
        self.n_ids += 1
        spec = TaskSpec(
            task_id=self.n_ids,
            model=model,
            tenant=tenant,
            n_tokens=1 + 2000 * len(text),
            worker=worker,
            slot=slot,
            prefix=prefix(model + text if text else ""),
            session=session,
        )
        try:
            actions = self.pool.submit(spec, self.now)
        except TaskError:
            return None
        self.specs[spec.task_id] = spec
        if worker in self.absence.gone:
            self.unbound.add(spec.task_id)
        self.attempts[spec.task_id] = 0
        self.waiting.add(spec.task_id)
        self.perform(actions)
        return spec.task_id

    @rule(data=st.data())
    @precondition(lambda self: self.workers)
    def leaves(self, data: st.DataObject) -> None:
        """Let a worker drain, rarely, so that some are left to choose from."""
        if data.draw(st.integers(0, 9)) == 7:
            super().leaves(data)

    @rule(data=st.data(), died=st.booleans())
    @precondition(lambda self: self.workers)
    def lost(self, data: st.DataObject, died: bool) -> None:
        if data.draw(st.integers(0, 9)) > 7:
            super().lost(data, died)

    @rule(data=st.data(), seconds=st.floats(0, 5))
    @precondition(lambda self: self.holding())
    def prompt_read(self, data: st.DataObject, seconds: float) -> None:
        worker, task_id, attempt = data.draw(st.sampled_from(self.holding()))
        self.time_passes(seconds)
        if worker.held.get((task_id, attempt)):
            self.write(worker, task_id, attempt)

    @rule(data=st.data(), task_id=st.integers(0, 30), text=st.sampled_from(TEXTS))
    @precondition(lambda self: self.workers)
    def cached(self, data: st.DataObject, task_id: int, text: str) -> None:
        key = data.draw(st.sampled_from(list(self.workers)))
        say = self.held.setdefault(key, Speaker(lambda said: self.pool.cached(key, said)))
        say.hold(task_id, prefix("m" + text).chain if text else b"")

    @invariant()
    def nobody_waits_beside_a_free_credit(self) -> None:
        """No task waits beside a free credit unless it is reserved, and not too long."""
        for task_id in self.waiting:
            spec = self.specs[task_id]
            owners = [w for w in self.pool.workers.values() if w.model == spec.model]
            if self.has_reason(task_id) or not any(worker.has_credit for worker in owners):
                continue
            assert task_id in self.pool.placement.deferral.ids, f"{task_id} waits without a reason"
            task = self.pool.tasks[task_id]
            assert task.reserved_for in {worker.key for worker in owners}
            assert task.reserved_until <= self.now + LONGEST_S

    @invariant()
    def memory_is_bounded(self) -> None:
        assert all(self.pool.routing.index.n_held(key) <= MAX_BLOCKS for key in self.pool.workers)
        assert self.pool.routing.index.n_blocks <= MAX_BLOCKS * len(self.pool.workers)

    @invariant()
    def only_workers_that_are_there_are_known(self) -> None:
        routing = self.pool.routing
        last = {placement.worker for placement in routing._sessions._placements.values()}
        assert {*routing._estimates} | last <= self.pool.workers.keys()


TestRouting = RoutedMachine.TestCase
TestRouting.settings = examples(150, stateful_step_count=50)
