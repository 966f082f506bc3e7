"""Random events in random order: no task is lost, ends twice or overtakes its tenant's others."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from gateway.pool.dispatch.actions import Action, Assign, CancelTask, Deliver, Fail
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import TaskState
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Done, Envelope, Failed, Finish, Started, TaskKey
from tests.examples import examples
from tests.gateway.dispatching import SimAbsence, SimWorker, card, may_be_held_back

QUEUE_SIZE = 4
TIMEOUT_S = 10.0
MODELS, NAMES = ("m", "n"), ("a", "b", "c")


class DispatcherMachine(RuleBasedStateMachine):
    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.settled: list[int] = []
        self.pool = Dispatcher(
            queue_size=QUEUE_SIZE,
            queue_timeout_s=TIMEOUT_S,
            on_settled=lambda task: self.settled.append(task.task_id),
        )
        self.now, self.n_ids, self.n_keys = 0.0, 0, 0
        self.workers: dict[str, SimWorker] = {}
        self.specs: dict[int, TaskSpec] = {}
        self.waiting: set[int] = set()
        self.running: dict[int, tuple[str, int]] = {}
        self.attempts: dict[int, int] = {}
        self.faults: Counter[int] = Counter()
        self.tried: dict[int, set[str]] = defaultdict(set)
        self.shown: set[int] = set()
        self.unbound: set[int] = set()  # asked for a slot of one of these
        self.absence = SimAbsence()
        self.served: dict[int, tuple[str, str]] = {}  # model and tenant of tasks that had a slot
        self.places: dict[tuple[int, int], int] = {}  # tokens that each attempt has behind it

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Assign():
                    self.assign(action)
                case CancelTask(worker, task_id, attempt):
                    assert (task_id, attempt) in self.workers[worker].held
                    if task_id in self.specs:  # it goes on elsewhere
                        assert self.running[task_id] == (worker, attempt)
                        self.moved(task_id)
                case Deliver(message):
                    assert self.running.pop(message.task.id)[1] == message.task.attempt
                    del self.specs[message.task.id]
                case Fail(task_id, _):
                    assert (task_id in self.waiting) != (task_id in self.running)
                    self.waiting.discard(task_id)
                    self.running.pop(task_id, None)
                    del self.specs[task_id]

    def assign(self, action: Assign) -> None:
        spec, worker = self.specs[action.task_id], self.workers[action.worker]
        self.served[action.task_id] = (spec.model, spec.tenant)
        assert action.task_id in self.waiting
        assert action.attempt == self.attempts[action.task_id]
        assert worker.is_ready
        assert not worker.is_leaving
        assert worker.model == spec.model
        assert spec.worker in ("", worker.name) or action.task_id in self.unbound
        if not spec.worker and not action.attempt:
            ahead = [other for other in self.waiting if self.is_ahead(other, spec)]
            assert not ahead, f"{action} before {ahead}"
        self.waiting.remove(action.task_id)
        self.running[action.task_id] = (worker.key, action.attempt)
        worker.held[action.task_id, action.attempt] = False
        self.places[action.task_id, action.attempt] = len(self.tokens(action.task_id))
        assert len(worker.held) <= worker.n_slots + worker.n_prefetch

    def is_ahead(self, task_id: int, spec: TaskSpec) -> bool:
        other = self.specs[task_id]
        alike = (other.tenant, other.model, other.worker) == (spec.tenant, spec.model, "")
        return alike and task_id < spec.task_id and not self.may_wait(task_id)

    def may_wait(self, task_id: int) -> bool:
        return bool(self.tried[task_id]) or self.pool.tasks[task_id].is_on_trial

    def has_reason(self, task_id: int) -> bool:
        """Whether a task may wait beside a free credit: for its slot, another worker or tenant."""
        if self.may_wait(task_id) or (self.specs[task_id].worker and task_id not in self.unbound):
            return True
        held = [self.served[i] for _, i, _ in self.holding()]
        known = set(self.served.values())
        return may_be_held_back(self.specs[task_id], held, known, self.pool.workers.values())

    def tokens(self, task_id: int) -> Sequence[int]:
        return self.pool.tasks[task_id].answer.tokens

    def holding(self) -> list[tuple[SimWorker, int, int]]:
        return [(w, *lease) for w in self.workers.values() for lease in w.held]

    def begun(self) -> list[tuple[SimWorker, int, int]]:
        return [(w, *lease) for w in self.workers.values() for lease in w.held if w.held[lease]]

    # ---- what may happen ------------------------------------------------------------------

    @rule(
        name=st.sampled_from(NAMES),
        model=st.sampled_from(MODELS),
        n_slots=st.integers(1, 2),
        n_prefetch=st.integers(0, 1),
    )
    def hello(self, name: str, model: str, n_slots: int, n_prefetch: int) -> None:
        if any(worker.name == name for worker in self.workers.values()):
            return
        self.n_keys += 1
        key = f"{name}:{self.n_keys}"
        self.workers[key] = SimWorker(key, name, model, n_slots, n_prefetch)
        self.pool.worker_hello(key, name, model)

    @rule(data=st.data())
    @precondition(lambda self: any(not w.is_ready for w in self.workers.values()))
    def ready(self, data: st.DataObject) -> None:
        self.open(data.draw(st.sampled_from([w for w in self.workers.values() if not w.is_ready])))

    def open(self, worker: SimWorker) -> None:
        worker.is_ready = True
        if not worker.is_leaving:
            self.absence.back(worker.name)
        told = card(worker.n_slots, worker.n_prefetch, worker.model)
        self.perform(self.pool.worker_ready(worker.key, told, self.now))

    @rule(data=st.data(), died=st.booleans())
    @precondition(lambda self: self.workers)
    def lost(self, data: st.DataObject, died: bool) -> None:
        worker = data.draw(st.sampled_from(list(self.workers.values())))
        actions = self.pool.worker_lost(worker.key, self.now, died=died)
        del self.workers[worker.key]
        self.absence.lost(worker.name, self.now)
        fails = {action.task_id: action.error for action in actions if isinstance(action, Fail)}
        failed = {i for i, error in fails.items() if error.code is not ErrorCode.QUARANTINED}
        for task_id, (key, _) in list(self.running.items()):
            if key != worker.key:
                continue
            must_end = task_id in self.shown and not self.specs[task_id].continues
            assert (task_id in failed) == must_end
            if task_id not in failed:
                self.moved(task_id)
                if worker.is_leaving:
                    self.unbound.add(task_id)
        self.perform(actions)

    def moved(self, task_id: int) -> None:
        """Note that a task waits again: another worker goes on with it, or begins anew."""
        del self.running[task_id]
        self.waiting.add(task_id)
        self.attempts[task_id] += 1

    @rule(data=st.data())
    @precondition(lambda self: self.begun())
    def read(self, data: st.DataObject) -> None:
        """Deliver a delta of a task: its client may see it."""
        self.write(*data.draw(st.sampled_from(self.begun())))

    def write(self, worker: SimWorker, task_id: int, attempt: int) -> None:
        if self.running.get(task_id) != (worker.key, attempt):
            return
        task = self.pool.tasks[task_id]
        task.answer.tokens.append(self.places[task_id, attempt])
        self.places[task_id, attempt] += 1
        if not self.specs[task_id].is_whole:
            self.shown.add(task_id)
        if not task.is_trusted:
            self.faults[task_id] *= task.n_deltas > 0
            self.perform(self.pool.delta_came(worker.key, TaskKey(task_id, attempt), self.now))

    @rule(
        target=tasks,
        model=st.sampled_from(MODELS),
        tenant=st.sampled_from("xyz"),
        n_tokens=st.integers(1, 50),
        pin=st.sampled_from((None, None, None, 0, 1, 7)),
        ways=st.tuples(st.booleans(), st.booleans()),
    )
    def submit(
        self, model: str, tenant: str, n_tokens: int, pin: int | None, ways: tuple[bool, bool]
    ) -> object:
        worker, slot = ("", -1) if pin is None else self.pool.slots.locate(model, pin)
        self.n_ids += 1
        spec = TaskSpec(
            task_id=self.n_ids,
            model=model,
            tenant=tenant,
            n_tokens=n_tokens,
            worker=worker,
            slot=slot,
            is_whole=ways[0],
            continues=ways[1],
        )
        shares = self.shares(model)
        try:
            actions = self.pool.submit(spec, self.now)
        except TaskError as error:
            known = model in self.pool.queue.depths()
            assert error.code is (ErrorCode.OVERLOADED if known else ErrorCode.NOT_FOUND)
            assert not known or shares.total() >= QUEUE_SIZE
            # Nobody holds so much more of a full queue that there should have been room.
            assert max(shares.values(), default=0) <= shares[tenant] + 1
            return multiple()
        displaced = [action.task_id for action in actions if isinstance(action, Fail)]
        if displaced:
            (last,) = displaced
            longest = self.specs[last].tenant
            assert shares.total() >= QUEUE_SIZE
            assert shares[longest] == max(shares.values()) >= shares[tenant] + 2
            assert last == max(self.waiting_of(model, longest))
        self.specs[spec.task_id] = spec
        if worker in self.absence.gone:
            self.unbound.add(spec.task_id)
        self.attempts[spec.task_id] = 0
        self.waiting.add(spec.task_id)
        self.perform(actions)
        if spec.task_id in self.waiting:
            assert self.shares(model).total() <= max(QUEUE_SIZE, shares.total())
        return spec.task_id

    def waiting_of(self, model: str, tenant: str) -> list[int]:
        specs = (self.specs[i] for i in self.waiting)
        return [one.task_id for one in specs if (one.model, one.tenant) == (model, tenant)]

    def shares(self, model: str) -> Counter[str]:
        """Count the waiting tasks of each tenant."""
        waiting = (self.specs[task_id] for task_id in self.waiting)
        return Counter(spec.tenant for spec in waiting if spec.model == model)

    @rule(task_id=consumes(tasks))
    def cancel(self, task_id: int) -> None:
        live = self.specs.pop(task_id, None) is not None
        self.waiting.discard(task_id)
        where = self.running.pop(task_id, None)
        actions = self.pool.cancel(task_id)
        assert bool(actions) == (live and where is not None)
        self.perform(actions)

    @rule(data=st.data())
    @precondition(lambda self: self.holding())
    def started(self, data: st.DataObject) -> None:
        worker, task_id, attempt = data.draw(st.sampled_from(self.holding()))
        fresh = not worker.held[task_id, attempt]
        n_running = sum(worker.held.values())
        if fresh and n_running >= worker.n_slots:
            return
        worker.held[task_id, attempt] = True
        message = Envelope(TaskKey(task_id, attempt), Started(slot=n_running, n_prompt=7))
        wanted = self.running.get(task_id) == (worker.key, attempt)
        assert self.pool.started(worker.key, message, self.now) == (wanted and fresh)

    @rule(data=st.data(), fails=st.booleans())
    @precondition(lambda self: self.holding())
    def ended(self, data: st.DataObject, fails: bool) -> None:
        self.end(*data.draw(st.sampled_from(self.holding())), fails=fails)

    def end(self, worker: SimWorker, task_id: int, attempt: int, *, fails: bool) -> None:
        del worker.held[task_id, attempt]
        message = Envelope(TaskKey(task_id, attempt), Done(finish=Finish.EOS, n_predicted=5))
        if fails:
            message = message._replace(payload=Failed(code=ErrorCode.INTERNAL, message=""))
            if self.running.get(task_id) == (worker.key, attempt):
                self.failed(worker, task_id)
        actions = self.pool.ended(worker.key, message, self.now)
        if fails and self.faults[task_id] > 1:
            assigned = [one.task_id for one in actions if isinstance(one, Assign)]
            assert task_id not in assigned
        self.perform(actions)

    def failed(self, worker: SimWorker, task_id: int) -> None:
        """Expect a task that no client has seen at a second worker, but never at a third."""
        self.faults[task_id] += 1
        self.tried[task_id].add(worker.key)
        spec = self.specs[task_id]
        ready = [one for one in self.workers.values() if one.is_ready and not one.is_leaving]
        alike = [one for one in ready if one.model == spec.model]
        named = [one for one in alike if task_id in self.unbound or spec.worker in ("", one.name)]
        others = [one for one in named if one.key not in self.tried[task_id]]
        may_move = self.faults[task_id] < 2 and (spec.continues or task_id not in self.shown)
        if may_move and (others or self.tokens(task_id)):
            self.moved(task_id)

    @rule(data=st.data())
    @precondition(lambda self: self.workers)
    def leaves(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(list(self.workers.values())))
        worker.is_leaving = True
        self.unbind(worker.name)
        self.perform(self.pool.worker_leaves(worker.key, self.now))

    def unbind(self, name: str) -> None:  # tasks that wait for its slots go elsewhere
        self.absence.gone.add(name)
        self.unbound |= {i for i in self.waiting if self.specs[i].worker == name}

    @rule(data=st.data(), task_id=st.integers(0, 60), attempt=st.integers(0, 3))
    @precondition(lambda self: self.workers)
    def liar(self, data: st.DataObject, task_id: int, attempt: int) -> None:
        """Send a terminal message for an attempt that the worker never had: nothing changes."""
        worker = data.draw(st.sampled_from(list(self.workers.values())))
        if (task_id, attempt) not in worker.held:
            message = Envelope(TaskKey(task_id, attempt), Done(finish=Finish.EOS))
            assert self.pool.ended(worker.key, message, self.now) == []

    @rule(seconds=st.floats(0, 2 * TIMEOUT_S))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for name in self.absence.given_up(self.now):
            self.unbind(name)
        self.perform(self.pool.expire(self.now))

    # ---- what always holds ----------------------------------------------------------------

    @invariant()
    def a_task_is_settled_once_when_nobody_has_it_any_more(self) -> None:
        held = self.pool.tasks.keys() | {task_id for _, task_id, _ in self.holding()}
        assert sorted(self.settled) == sorted(self.attempts.keys() - held)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.waiting | self.running.keys() == self.specs.keys()
        assert len(self.pool.queue) == len(self.waiting)
        assert self.pool.n_tasks == len(self.specs)

    @invariant()
    def credits_are_what_the_workers_hold(self) -> None:
        for worker in self.workers.values():
            seen = self.pool.workers[worker.key]
            has = [(task.task_id, task.attempt) for task in seen.tasks.values()]
            has += [(key.id, key.attempt) for key in seen.abandoned]
            assert sorted(has) == sorted(worker.held)
            assert (seen.n_taken, seen.n_slotless) == (len(worker.held), 0)

    @invariant()
    def nothing_is_left_of_an_ended_task(self) -> None:
        """Every table holds what waits or what a worker has, and each record says where it is."""
        held = {
            task_id: worker
            for worker, task_id, attempt in self.holding()
            if TaskKey(task_id, attempt) not in self.pool.workers[worker.key].abandoned
        }
        assert self.pool.tasks.keys() == self.specs.keys() | held.keys()
        assert self.pool.queue.ids == self.waiting
        assert self.pool.placement.deferral.ids <= self.waiting
        for task_id, task in self.pool.tasks.items():
            assert (task.state is TaskState.WAITING) == (task_id in self.waiting)
            assert (task.state is TaskState.CANCELLED) == (task_id not in self.specs)
            assert task.worker == (held[task_id].key if task_id in held else "")
        for key, worker in self.pool.workers.items():
            if worker.card is not None:
                unread = [one for one in worker.tasks.values() if one.n_unread is not None]
                assert self.pool.routing._estimates[key].pending.n_prompts == len(unread)

    @invariant()
    def no_token_of_an_answer_is_lost_or_doubled(self) -> None:
        for task_id in self.specs:
            tokens = self.tokens(task_id)
            assert list(tokens) == list(range(len(tokens)))

    @invariant()
    def nobody_waits_beside_a_free_credit(self) -> None:
        plain = {self.specs[i].model for i in self.waiting if not self.has_reason(i)}
        assert not [w for w in self.pool.workers.values() if w.has_credit and w.model in plain], (
            repr(self.pool)
        )

    def teardown(self) -> None:
        for worker in list(self.workers.values()):
            if not worker.is_ready:
                self.open(worker)
        while holding := self.holding():
            self.end(*holding[0], fails=False)
        for _ in range(2):  # a suspect that waited for its turn may go and end
            self.time_passes(2 * TIMEOUT_S)
            while holding := self.holding():
                self.end(*holding[0], fails=False)
        assert not self.specs
        assert f" workers={len(self.workers)} tasks=0 waiting=0 taken=0>" in repr(self.pool)


TestDispatcher = DispatcherMachine.TestCase
TestDispatcher.settings = examples(150, stateful_step_count=50)
