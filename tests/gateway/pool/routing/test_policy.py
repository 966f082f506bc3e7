"""The choice of a worker: one rule a test."""

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.pool.dispatch.actions import Action, Assign
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import RouteReason, Task
from protocol.errors import ErrorCode
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Done, Envelope, Failed, Finish, Started, TaskKey
from tests.gateway.chains import Speaker, prefix


def task(task_id: int, text: str = "", **fields: Any) -> TaskSpec:
    """A prompt of 64 tokens a letter."""
    values: dict[str, Any] = {"model": "m", "prefix": prefix(text)}
    values["n_tokens"] = max(1, 64 * len(text))
    return TaskSpec(task_id=task_id, **(values | fields))


class Pool:
    """A dispatcher and workers whose messages the test sends."""

    def __init__(self, *names: str, n_slots: int = 2, n_prefetch: int = 0) -> None:
        self.dispatcher = Dispatcher(queue_size=100, queue_timeout_s=60.0)
        self.now = 0.0
        self.tasks: dict[int, Task] = {}
        self.held: dict[str, Speaker] = {}
        """What each worker says of its cache."""
        for name in names:
            self.join(name, n_slots, n_prefetch)

    def join(self, name: str, n_slots: int = 2, n_prefetch: int = 0) -> None:
        self.dispatcher.worker_hello(name, name, "m")
        card = ModelCard(
            name="m",
            path="",
            n_slots=n_slots,
            n_prefetch=n_prefetch,
            n_ctx=8192,
            n_ctx_total=8192,
        )
        self.held[name] = Speaker(lambda message: self.dispatcher.cached(name, message))
        self.note(self.dispatcher.worker_ready(name, card, self.now))

    def note(self, actions: Sequence[Action]) -> list[tuple[int, str, RouteReason]]:
        assigned = [action for action in actions if isinstance(action, Assign)]
        tasks = [self.dispatcher.tasks[one.task_id] for one in assigned]
        self.tasks |= {one.task_id: one for one in tasks}
        return [(one.task_id, one.worker, RouteReason(one.route)) for one in tasks]

    def submit(self, spec: TaskSpec) -> list[tuple[int, str, RouteReason]]:
        return self.note(self.dispatcher.submit(spec, self.now))

    def start(self, spec: TaskSpec, n_cached: int = -1, read_s: float = 0.1) -> None:
        """Read a prompt in `read_s`; -1 finds as much in the cache as was expected."""
        lease = TaskKey(spec.task_id)
        worker = self.tasks[spec.task_id].worker
        n_cached = self.tasks[spec.task_id].n_expected if n_cached < 0 else n_cached
        n_prompt = max(spec.n_tokens, n_cached)
        self.held[worker].hold(spec.task_id, spec.prefix.chain)
        message = Envelope(lease, Started(slot=0, n_prompt=n_prompt, n_cached=n_cached))
        self.dispatcher.started(worker, message, self.now)
        self.now += read_s
        self.dispatcher.delta_came(worker, lease, self.now)

    def end(self, spec: TaskSpec, **fields: Any) -> list[tuple[int, str, RouteReason]]:
        values: dict[str, Any] = {
            "finish": Finish.EOS,
            "n_prompt": spec.n_tokens,
            "n_predicted": 10,
            "n_past": spec.n_tokens + 10,
        }
        done = Done(**(values | fields))
        worker = self.tasks[spec.task_id].worker
        share = done.n_past / spec.n_tokens if done.finish is Finish.CANCELLED else 1.0
        self.held[worker].hold(spec.task_id, spec.prefix.chain, share)
        message = Envelope(TaskKey(spec.task_id), done)
        return self.note(self.dispatcher.ended(worker, message, self.now))

    def run(self, spec: TaskSpec, **started: Any) -> tuple[str, RouteReason]:
        """Run a task from its submission to its end; return its worker and the reason."""
        ((_, worker, reason),) = self.submit(spec)
        self.start(spec, **started)
        self.end(spec)
        return worker, reason


def test_a_prompt_goes_where_its_beginning_is() -> None:
    pool = Pool("a", "b")
    assert pool.run(task(1, "history")) == ("a", RouteReason.LOAD)
    assert pool.run(task(2, "another")) == ("b", RouteReason.LOAD)
    assert pool.run(task(3, "history and more")) == ("a", RouteReason.PREFIX)
    assert pool.run(task(4, "another one")) == ("b", RouteReason.PREFIX)


def test_the_choice_says_how_much_should_be_cached() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "history"))
    pool.submit(task(2, "history and more"))
    assert pool.tasks[1].n_expected == 0
    assert pool.tasks[2].n_expected == pytest.approx(7 * 64, rel=0.05)


def test_a_busy_worker_loses_to_one_that_reads_the_prompt_sooner() -> None:
    pool = Pool("a", "b", n_slots=8)
    pool.run(task(1, "ab"))
    pool.submit(task(2, "ab" + "x" * 100))
    assert pool.submit(task(3, "ab and")) == [(3, "b", RouteReason.SPREAD)]


def test_what_the_worker_evicted_is_forgotten() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "history"))
    pool.held["a"].hold(1, b"")
    assert pool.run(task(2, "history and more")) == ("b", RouteReason.LOAD)
    (message,) = pool.held["b"].announce()
    pool.dispatcher.cached("nobody", message)


def test_a_gateway_that_is_new_knows_what_the_workers_hold() -> None:
    old, new = Pool("a", "b"), Pool("a", "b")
    old.run(task(1, "history"))
    assert old.run(task(2, "another")) == ("b", RouteReason.LOAD)
    for name in ("a", "b"):
        for message in old.held[name].announce():
            new.dispatcher.cached(name, message)
    assert new.run(task(3, "another one")) == ("b", RouteReason.PREFIX)
    assert new.run(task(4, "history and more")) == ("a", RouteReason.PREFIX)


def test_a_prompt_that_was_assigned_and_not_started_draws_its_like() -> None:
    pool = Pool("a", "b", n_slots=4)
    assert pool.submit(task(1, "history")) == [(1, "a", RouteReason.LOAD)]
    assert pool.submit(task(2, "history")) == [(2, "a", RouteReason.PREFIX)]


def test_what_failed_or_was_never_read_is_not_taken_for_cached() -> None:
    pool = Pool("a", "b")
    pool.submit(task(1, "history"))
    failed = Envelope(TaskKey(1), Failed(code=ErrorCode.INVALID_REQUEST, message=""))
    pool.dispatcher.ended("a", failed, pool.now)
    assert pool.run(task(2, "history!"))[1] is RouteReason.LOAD
    pool.submit(task(3, "something"))
    pool.end(task(3, "something"), finish=Finish.CANCELLED, n_past=0)
    assert pool.run(task(4, "something!"))[1] is RouteReason.LOAD


def test_a_prompt_that_was_read_in_part_is_cached_in_part() -> None:
    pool = Pool("a", "b")
    spec = task(1, "x" * 100)
    pool.submit(spec)
    pool.end(spec, finish=Finish.CANCELLED, n_past=spec.n_tokens // 4)
    pool.submit(task(2, "x" * 100))
    assert pool.tasks[2].n_expected == pytest.approx(25 * 64, rel=0.05)


def test_a_worker_that_is_gone_or_emptied_knows_nothing() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "history"))
    pool.dispatcher.worker_lost("a", pool.now)
    pool.join("a")
    assert pool.run(task(2, "history"))[1] is RouteReason.LOAD
    pool.dispatcher.connected.sleeps("a", True)
    pool.dispatcher.connected.sleeps("b", True)
    assert pool.run(task(3, "history"))[1] is RouteReason.LOAD


def test_a_worker_that_never_finds_what_it_should_have_is_not_believed() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "history"))
    for i in range(2, 12):
        spec = task(i, "history" + "x" * i)
        pool.submit(spec)
        pool.start(spec, n_cached=0)
        pool.end(spec)
    pool.submit(task(99, "history" + "x" * 5))
    assert pool.tasks[99].n_expected < 64


def test_a_session_returns_to_its_worker_though_its_prompt_is_unknown() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "ab"))
    assert pool.run(task(2, "cd", session=5, n_tokens=500)) == ("b", RouteReason.LOAD)
    for i in range(3, 6):
        assert pool.run(task(i, f"{i}", session=5, n_tokens=500)) == ("b", RouteReason.SESSION)


def test_a_label_decides_between_equals_only() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, label=9))
    assert pool.run(task(2, label=9)) == ("a", RouteReason.LOAD)
    assert pool.run(task(3)) == ("b", RouteReason.LOAD)
    pool.submit(task(4, n_tokens=500, label=9))
    assert pool.submit(task(5, n_tokens=500, label=9)) == [(5, "b", RouteReason.LOAD)]


def test_a_pinned_task_goes_where_it_must() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "history"))
    assert pool.submit(task(2, "history", worker="b", slot=0)) == [(2, "b", RouteReason.PINNED)]


def full(pool: Pool, *ids: int) -> None:
    """Occupy the slots of worker a."""
    for i in ids:
        pool.submit(task(i, worker="a", slot=i % 2))


def test_a_long_history_waits_for_its_worker_though_another_is_free() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "x" * 100), read_s=10.0)
    full(pool, 2, 3)
    assert pool.submit(task(4, "x" * 101)) == []
    assert pool.submit(task(5, "other")) == [(5, "b", RouteReason.LOAD)]
    assert pool.end(task(3, worker="a")) == [(4, "a", RouteReason.PREFIX)]


def test_it_waits_no_longer_than_another_takes_to_read_it() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "x" * 100), read_s=10.0)
    full(pool, 2, 3)
    pool.submit(task(4, "x" * 101))
    pool.now += 1.0
    assert pool.note(pool.dispatcher.expire(pool.now)) == []
    pool.now += 10.0
    assert pool.note(pool.dispatcher.expire(pool.now)) == [(4, "b", RouteReason.SPREAD)]


def test_it_does_not_wait_for_a_worker_that_is_lost() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "x" * 100), read_s=10.0)
    full(pool, 2, 3)
    pool.submit(task(4, "x" * 101))
    assert (4, "b", RouteReason.LOAD) in pool.note(pool.dispatcher.worker_lost("a", pool.now))


def test_only_as_many_as_have_a_chance_wait_for_one_worker() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "x" * 100), read_s=10.0)
    full(pool, 2, 3)
    waiting = [pool.submit(task(i, "x" * 101)) for i in (4, 5, 6)]
    assert waiting == [[], [], [(6, "b", RouteReason.SPREAD)]]


def test_a_short_history_waits_for_nobody() -> None:
    pool = Pool("a", "b")
    pool.run(task(1, "history"))
    full(pool, 2, 3)
    assert pool.submit(task(4, "history!")) == [(4, "b", RouteReason.SPREAD)]


def test_a_freed_slot_goes_to_the_task_that_knows_the_worker() -> None:
    pool = Pool("a", "b", n_slots=1)
    for i, text in ((1, "first"), (2, "later")):
        pool.run(task(i, text), read_s=1.0)
    pool.submit(task(3, worker="a", slot=0))
    pool.submit(task(4, worker="b", slot=0))
    for i, text in ((5, "later!"), (6, "first!"), (7, "first?")):
        assert pool.submit(task(i, text)) == []
    assert pool.end(task(3)) == [(6, "a", RouteReason.PREFIX)]
    assert pool.end(task(4)) == [(5, "b", RouteReason.PREFIX)]


def test_no_task_lets_others_go_first_for_long() -> None:
    pool = Pool("a", "b", n_slots=1)
    for i, text in ((1, "first"), (2, "later")):
        pool.run(task(i, text), read_s=1.0)
    pool.submit(task(3, worker="a", slot=0))
    pool.submit(task(4, worker="b", slot=0))
    pool.submit(task(5, "later!"))
    for i in range(6, 12):
        pool.submit(task(i, "first!"))
    running, order = 3, []
    for _ in range(6):
        ((running, _, _),) = pool.end(task(running, "first!"))
        order.append(running)
        pool.now += 1.0
    assert 5 in order


def test_a_free_slot_is_never_left_to_a_task_that_is_not_there() -> None:
    pool = Pool("a", "b", n_slots=1)
    for i, text in ((1, "first"), (2, "later")):
        pool.run(task(i, text))
    pool.submit(task(3, worker="a", slot=0))
    pool.submit(task(4, worker="b", slot=0))
    pool.submit(task(5, "later!"))
    pool.submit(task(6, "later?"))
    assert pool.end(task(3)) == [(5, "a", RouteReason.SPREAD)]
