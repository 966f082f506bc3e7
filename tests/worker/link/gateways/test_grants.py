"""Credits between several gateways: never too many, each with one owner, and nobody starves."""

import math
from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from protocol.wire.messages import TaskKey
from tests.examples import examples
from worker.link.gateways.grants import Grants


class Gateway:
    """A gateway as it is meant to be: it counts by itself, and hears everything late."""

    def __init__(self, capacity: int, number: int) -> None:
        self.capacity = capacity
        self.number = number
        self.granted = -capacity
        self.returned = 0
        self.running: set[TaskKey] = set()
        self.queue: deque[float] = deque()
        self.inbox: deque[tuple[str, int | TaskKey]] = deque()
        self.outbox: deque[tuple[str, tuple[float, ...] | int | TaskKey]] = deque()
        self.n_sent = 0

    @property
    def n_free(self) -> int:
        return self.capacity + self.granted - self.returned - len(self.running)

    def pump(self) -> None:
        """Send what may be sent, and say what waits."""
        while self.queue and self.n_free > 0:
            self.queue.popleft()
            self.n_sent += 1
            key = TaskKey(self.n_sent, 0, self.number)
            self.running.add(key)
            self.outbox.append(("task", key))
        self.outbox.append(("demand", (len(self.queue), self.queue[0] if self.queue else 0.0)))

    def hear(self) -> None:
        """Take one message of the worker."""
        kind, value = self.inbox.popleft()
        if kind == "granted":
            assert isinstance(value, int)
            self.granted = value
        elif kind == "recall":
            assert isinstance(value, int)
            n = min(value, max(0, self.n_free))
            self.returned += n
            self.outbox.append(("returned", n))
        else:
            assert isinstance(value, TaskKey)
            self.running.remove(value)
        n_ends = sum(kind == "end" for kind, _ in self.inbox)
        assert self.n_free + n_ends >= 0, "only ends that are on the way explain fewer than none"
        self.pump()


class GrantsMachine(RuleBasedStateMachine):
    """A worker with its grants, and gateways at the end of two pipes each."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.n_numbers = 0
        self.n_slots = self.n_prefetch = 0
        self.grants = Grants()
        self.gateways: dict[int, Gateway] = {}
        self.told: dict[int, int] = {}
        self.here: dict[TaskKey, None] = {}

    @property
    def capacity(self) -> int:
        return self.n_slots + self.n_prefetch

    def settle(self) -> None:
        """Do what the link does after anything."""
        recalls = self.grants.settle(self.now)
        for number, gateway in self.gateways.items():
            if (granted := self.grants.granted(number)) != self.told.get(number):
                self.told[number] = granted
                gateway.inbox.append(("granted", granted))
        for number, n in recalls:
            assert n > 0
            self.gateways[number].inbox.append(("recall", n))

    def hear(self, gateway: Gateway) -> None:
        kind, value = gateway.outbox.popleft()
        if kind == "task":
            assert isinstance(value, TaskKey)
            self.here[value] = None
            assert self.grants.take(value)
        elif kind == "returned":
            assert isinstance(value, int)
            self.grants.give_back(gateway.number, value)
        else:
            assert isinstance(value, tuple)
            self.grants.want(gateway.number, int(value[0]), value[1])
        self.settle()

    def end(self, key: TaskKey) -> None:
        del self.here[key]
        assert self.grants.end(key)
        self.settle()  # what was taken is told before the end
        self.gateways[key.connection].inbox.append(("end", key))

    @initialize(n=st.integers(1, 3), n_slots=st.integers(1, 3), n_prefetch=st.integers(0, 1))
    def begin(self, n: int, n_slots: int, n_prefetch: int) -> None:
        self.n_slots, self.n_prefetch = n_slots, n_prefetch
        self.grants.size(n_slots, n_prefetch)
        for _ in range(n):
            self.join()
            self.calm()

    @rule()
    @precondition(lambda self: len(self.gateways) < 4)
    def join(self) -> None:
        number, self.n_numbers = self.n_numbers, self.n_numbers + 1
        self.gateways[number] = Gateway(self.capacity, number)
        self.grants.open(number)
        self.settle()

    @rule(data=st.data())
    @precondition(lambda self: len(self.gateways) > 2)
    def lose(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.gateways)))
        del self.gateways[number]
        self.told.pop(number, None)
        self.here = {key: None for key in self.here if key.connection != number}
        self.grants.close(number)
        self.settle()

    @rule(data=st.data(), is_retired=st.booleans())
    @precondition(lambda self: self.gateways)
    def retire(self, data: st.DataObject, is_retired: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.gateways)))
        self.grants.retire(number, is_retired=is_retired)
        self.settle()

    @rule(data=st.data(), n=st.integers(1, 5))
    @precondition(lambda self: self.gateways)
    def ask(self, data: st.DataObject, n: int) -> None:
        gateway = self.gateways[data.draw(st.sampled_from(sorted(self.gateways)))]
        for _ in range(n):
            self.now += 1
            gateway.queue.append(self.now)
        gateway.pump()

    @rule(moves=st.lists(st.integers(0, 11), min_size=5, max_size=80))
    def messages_pass_and_tasks_end(self, moves: list[int]) -> None:
        """Let some gateway hear a message, or the worker hear one of it, or a task end."""
        for move in moves:
            gateways = list(self.gateways.values())
            gateway = gateways[move % 3 % len(gateways)] if gateways else None
            if move < 4 and self.here:
                self.end(list(self.here)[move % len(self.here)])
            elif gateway is not None and move < 8 and gateway.inbox:
                gateway.hear()
            elif gateway is not None and gateway.outbox:
                self.hear(gateway)
            self.no_more_tasks_than_credits()
            self.every_credit_has_one_owner()

    def teardown(self) -> None:
        """Let all messages pass and all tasks end: no queue is left, in few rounds."""
        if not self.gateways:
            return
        n_left = sum(len(one.queue) + len(one.running) for one in self.gateways.values())
        for _ in range(2 * n_left + 2):
            self.calm()
            if not self.here:
                break
            self.end(next(iter(self.here)))
        assert not any(one.queue or one.running for one in self.gateways.values())
        assert not any(share.n_recalled for share in self.grants._shares.values())

    def calm(self) -> None:
        """Let every message arrive; that comes to an end."""
        for _ in range(200):
            busy = [one for one in self.gateways.values() if one.inbox or one.outbox]
            if not busy:
                return
            for one in busy:
                while one.inbox:
                    one.hear()
                while one.outbox:
                    self.hear(one)
        raise AssertionError(f"credits go around for ever: {self.grants!r}")

    @invariant()
    def no_more_tasks_than_credits(self) -> None:
        on_the_way = [v for g in self.gateways.values() for kind, v in g.outbox if kind == "task"]
        assert len(self.here) + len(on_the_way) <= self.capacity

    @invariant()
    def every_credit_has_one_owner(self) -> None:
        limits = {number: self.grants.limit(number) for number in self.gateways}
        assert self.grants.n_free + sum(limits.values()) == self.capacity
        assert self.grants.n_free >= 0 and all(limit >= 0 for limit in limits.values())
        held = {n: sum(key.connection == n for key in self.here) for n in self.gateways}
        assert all(held[n] <= limits[n] for n in self.gateways)

    @invariant()
    def a_gateway_alone_has_all(self) -> None:
        if len(self.gateways) == 1:
            (number,) = self.gateways
            share = self.grants._shares[number]
            assert share.n_recalled or share.limit == self.capacity


TestGrants = GrantsMachine.TestCase
TestGrants.settings = examples(150)


def three(n_slots: int = 2, n_prefetch: int = 1) -> Grants:
    """Return the grants of a worker with three gateways, of which the first had everything."""
    grants = Grants()
    grants.size(n_slots, n_prefetch)
    for number in range(3):
        grants.open(number)
        grants.settle(0.0)
    return grants


def test_a_gateway_alone_is_told_nothing() -> None:
    grants = Grants()
    grants.size(4, 1)
    grants.open(0)
    assert grants.settle(0.0) == []
    for n in range(20):
        grants.take(TaskKey(n))
        assert grants.end(TaskKey(n)) and grants.settle(0.0) == []
        assert grants.granted(0) == 0 and grants.limit(0) == 5


def test_slots_are_spread_evenly_once_another_gateway_comes() -> None:
    grants = Grants()
    grants.size(4, 1)
    grants.open(0)
    grants.settle(0.0)
    grants.open(1)
    ((number, n),) = grants.settle(0.0)
    grants.give_back(number, n)
    assert grants.settle(0.0) == []
    assert (number, n) == (0, 3)
    assert [grants.limit(0), grants.limit(1), grants.n_free] == [2, 2, 1]


def test_the_credit_of_a_task_goes_to_whom_has_waited_longest() -> None:
    grants = three(n_slots=1, n_prefetch=0)
    grants.take(TaskKey(1))
    grants.want(0, 5, since=30.0)
    grants.want(1, 1, since=20.0)
    grants.want(2, 1, since=10.0)
    assert grants.settle(40.0) == []
    grants.end(TaskKey(1))
    grants.settle(40.0)
    assert [grants.limit(n) for n in range(3)] == [0, 0, 1]


def test_unused_credits_are_recalled_for_whom_waits() -> None:
    grants = three(n_slots=1, n_prefetch=0)
    grants.want(2, 1, since=1.0)
    assert grants.settle(1.0) == [(0, 1)]
    assert grants.settle(1.5) == [], "once is enough"
    grants.give_back(0, 1)
    grants.settle(2.0)
    assert [grants.limit(n) for n in range(3)] == [0, 0, 1]


def test_who_has_just_returned_a_credit_does_not_get_it_again() -> None:
    grants = three(n_slots=1, n_prefetch=0)
    grants.want(1, 1, since=2.0)
    assert grants.settle(2.0) == [(0, 1)]
    grants.give_back(0, 1)
    grants.want(0, 1, since=1.0)  # it is older, but could not use what it had
    grants.settle(2.0)
    assert grants.limit(1) == 1


def test_a_recall_without_an_answer_is_noticed() -> None:
    grants = three(n_slots=1, n_prefetch=0)
    grants.want(1, 1, since=2.0)
    grants.settle(2.0)
    assert grants.overdue(11.0, limit_s=10.0) == []
    assert grants.overdue(12.5, limit_s=10.0) == [0]


@pytest.mark.parametrize("n", [-5, 0, 10**9])
def test_a_gateway_cannot_return_what_it_was_not_asked_for(n: int) -> None:
    grants = three(n_slots=4)
    before = [grants.limit(number) for number in range(3)]
    grants.give_back(1, n)
    grants.give_back(99, n)
    assert [grants.limit(number) for number in range(3)] == before


def test_a_retired_gateway_gets_what_it_waits_for_and_keeps_nothing() -> None:
    grants = Grants()
    grants.size(2, 0)
    grants.open(0)
    grants.settle(0.0)
    grants.take(TaskKey(1))
    grants.retire(0)
    grants.open(1)
    assert grants.settle(0.0) == [(0, 1)]
    grants.give_back(0, 1)
    grants.settle(0.0)
    grants.end(TaskKey(1))
    grants.settle(0.0)
    assert [grants.limit(0), grants.limit(1)] == [0, 2]
    grants.want(0, 1, since=0.0)
    assert grants.settle(1.0) == [(1, 1)]


def test_what_a_retired_gateway_keeps_is_recalled_from_it_and_from_no_other() -> None:
    grants = Grants()
    grants.size(2, 0)
    for number in range(4):
        grants.open(number)
        for other, n in grants.settle(0.0):
            grants.give_back(other, n)
            grants.settle(0.0)
    assert [grants.limit(n) for n in range(4)] == [1, 1, 0, 0]
    grants.retire(1)
    assert grants.settle(1.0) == [(1, 1)], "the other one would get it again, without end"
    grants.give_back(1, 1)
    assert grants.settle(1.0) == []
    assert [grants.limit(n) for n in range(4)] == [1, 0, 1, 0]


def test_credits_do_not_go_around_between_gateways_that_cannot_use_them() -> None:
    grants = three(n_slots=1, n_prefetch=0)
    for number in (1, 2):
        grants.want(number, 1, since=float(number))
    n_recalls, now = 0, 0.0
    while now < 1.0:
        for number, n in grants.settle(now):
            n_recalls += 1
            grants.give_back(number, n)
        now += 0.001
    assert n_recalls <= 11, "at most one in 0.1 s"


def test_a_gateway_that_claims_to_wait_longest_does_not_starve_the_others() -> None:
    grants = three(n_slots=2, n_prefetch=0)
    grants.close(2)
    running: deque[TaskKey] = deque()
    n_got, n_sent, now = 0, 0, 0.0
    while now < 60.0:
        for number, n in grants.settle(now):
            grants.give_back(number, n)
        for number in (0, 1):
            n_held = sum(key.connection == number for key in running)
            for _ in range(grants.limit(number) - n_held):
                n_sent, key = n_sent + 1, TaskKey(n_sent, 0, number)
                assert grants.take(key)
                running.append(key)
                n_got += number == 1
        grants.want(0, 10**9, since=-math.inf)
        grants.want(1, 3, since=now - 1.0)
        if len(running) > 1:
            grants.end(running.popleft())
        now += 0.5
    assert n_got >= 5


def test_a_gateway_that_does_not_use_its_credits_gets_no_more_of_them() -> None:
    grants = Grants()
    grants.size(4, 0)
    grants.open(0)
    grants.settle(0.0)
    running = deque(TaskKey(number) for number in range(4))
    assert all(map(grants.take, running))
    grants.open(1)
    for number in range(8):
        grants.want(0, 4, since=float(number))
        grants.want(1, 10**9, since=-math.inf)
        assert grants.end(running.popleft())
        grants.settle(2.0 * number)
        while len(running) < grants.limit(0):
            running.append(TaskKey(10 + 10 * number + len(running)))
            assert grants.take(running[-1])
    assert [grants.limit(0), grants.limit(1)] == [3, 1]
