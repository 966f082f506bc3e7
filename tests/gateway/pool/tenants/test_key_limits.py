"""What the dispatcher does with the limits of keys: turns, classes, priorities, tokens."""

import dataclasses

import pytest

from gateway.keys.api_key import KeyLimits, PriorityClass
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.spec import Together
from gateway.pool.tenants.allowances import DAY_S, Allowances, Spent, UsageHistory
from gateway.pool.tenants.moving_window import MovingWindow
from gateway.pool.tenants.tenant_concurrency import ConcurrencyElsewhere
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Done, Envelope, Finish, TaskKey
from protocol.wire.side_tasks import Embedded
from tests.gateway.dispatching import (
    card,
    dispatcher,
    done,
    failures,
    limited,
    places,
    read,
    started,
    task,
)

TWO = KeyLimits(concurrent=2)


def test_what_exceeds_the_number_at_once_waits_and_goes_when_one_ends() -> None:
    pool = dispatcher("a", n_slots=8)
    for i in range(1, 5):
        pool.submit(limited(i, "x", TWO), 0.0)
    assert len(pool.workers["a"].tasks) == 2
    assert pool.queue.depths() == {"m": 2}
    assert pool.queue.waiting("m") == (0, 0.0)  # no other gateway is asked for a slot
    assert places(pool.submit(task(9, tenant="y"), 0.0)) == [(9, "a")]
    assert places(pool.ended("a", done(1), 1.0)) == [(3, "a")]
    assert pool.cancel(4, 1.0) == []
    assert places(pool.ended("a", done(2), 1.0)) == []
    assert places(pool.ended("a", done(3), 1.0)) == []
    assert pool.queue.concurrency.n_tasks == {}


def test_a_number_at_once_counts_over_all_models() -> None:
    pool = dispatcher("a", n_slots=2)
    pool.worker_hello("b", "b", "other")
    pool.worker_ready("b", card(2, name="other"), 0.0)
    limits = KeyLimits(concurrent=1)
    pool.submit(limited(1, "x", limits), 0.0)
    pool.submit(limited(2, "x", limits, model="other"), 0.0)
    assert places(pool.ended("a", done(1), 1.0)) == [(2, "b")]


def test_a_waiting_task_beyond_the_number_has_the_deadline_of_the_queue() -> None:
    pool = dispatcher("a", n_slots=8)
    for i in range(3):
        pool.submit(limited(i, "x", TWO), 0.0)
    assert failures(pool.expire(11.0)) == {2: ErrorCode.OVERLOADED}


def test_a_held_task_for_a_slot_of_a_worker_that_drains_goes_to_another_one() -> None:
    pool = dispatcher("a", "b", n_slots=1)
    one = KeyLimits(concurrent=1)
    pool.submit(limited(1, "x", one, worker="b", slot=0), 0.0)
    pool.submit(limited(2, "x", one, worker="a", slot=0), 0.0)
    pool.worker_leaves("a", 0.0)
    pool.worker_lost("a", 0.0)
    assert places(pool.ended("b", done(1), 1.0)) == [(2, "b")]


def test_who_comes_new_does_not_start_at_the_level_of_a_key_that_its_limit_holds() -> None:
    pool = dispatcher("a", n_slots=2)
    for i in (1, 2):
        pool.submit(limited(i, "held", KeyLimits(concurrent=1)), 0.0)
    for i in range(10, 20):
        pool.submit(task(i, tenant="busy", n_tokens=1000), 0.0)
    for i in range(10, 18):
        pool.started("a", started(i, n_prompt=1000), 1.0)
        pool.ended("a", done(i), 1.0)
    pool.started("a", started(18, n_prompt=1000), 1.0)
    assert pool.queue.ids == {2, 19}
    for i in (30, 31):
        pool.submit(task(i, tenant="new", n_tokens=1000), 1.0)
    order = [18]
    for _ in range(3):
        [(task_id, _)] = places(pool.ended("a", done(order[-1]), 2.0))
        order.append(task_id)
    assert order == [18, 19, 30, 31]


def test_a_number_at_once_that_is_raised_counts_for_those_that_wait_already() -> None:
    pool = dispatcher("a", n_slots=8)
    for i in range(1, 4):
        pool.submit(limited(i, "x", KeyLimits(concurrent=1)), 0.0)
    assert pool.queue.ids == {2, 3}
    four = KeyLimits(concurrent=4)
    assert places(pool.submit(limited(4, "x", four), 1.0)) == [(2, "a"), (3, "a"), (4, "a")]
    pool.submit(limited(5, "x", KeyLimits(concurrent=2)), 2.0)
    for i, then in ((1, []), (2, []), (3, [(5, "a")]), (4, []), (5, [])):
        assert places(pool.ended("a", done(i), 3.0)) == then
    assert repr(pool.queue.concurrency) == "<TenantConcurrency {}>"


def test_a_displaced_task_lets_another_of_its_key_compete_at_once() -> None:
    pool = dispatcher("a", n_slots=1, queue_size=1)
    pool.worker_hello("b", "b", "other")
    pool.worker_ready("b", card(2, name="other"), 0.0)
    low = KeyLimits(concurrent=1, priority=PriorityClass.LOW)
    pool.submit(task(1), 0.0)
    pool.submit(limited(2, "x", low), 0.0)
    pool.submit(limited(3, "x", low, model="other"), 0.0)
    actions = pool.submit(task(4, tenant="y"), 0.0)
    assert failures(actions) == {2: ErrorCode.OVERLOADED}
    assert places(actions) == [(3, "b")]


def test_a_task_that_lost_its_worker_keeps_its_turn() -> None:
    pool = dispatcher("a", "b", n_slots=2)
    for i in range(4):
        pool.submit(limited(i, "x", TWO), 0.0)
    running = [key for key in ("a", "b") if pool.workers[key].tasks]
    moved = places(pool.worker_lost(running[0], 1.0))
    assert {i for i, _ in moved} <= {0, 1}
    assert sum(pool.queue.concurrency.n_tasks.values()) == 2


def test_other_gateways_of_the_host_share_the_number() -> None:
    pool = dispatcher("a", n_slots=8)
    four = KeyLimits(concurrent=4)
    pool.queue.concurrency.elsewhere = {"x": ConcurrencyElsewhere(n_tasks=3, n_gateways=1)}
    for i in range(6):
        pool.submit(limited(i, "x", four), 0.0)
    assert len(pool.workers["a"].tasks) == 2  # never less than its share
    pool.queue.concurrency.elsewhere = {}
    pool.queue.admit("x")
    assert len(places(pool.expire(0.1))) == 2


def test_a_higher_class_goes_first_and_takes_places_in_a_full_queue() -> None:
    pool = dispatcher("a", queue_size=2)
    low, high = KeyLimits(priority=PriorityClass.LOW), KeyLimits(priority=PriorityClass.HIGH)
    pool.submit(task(0), 0.0)
    pool.submit(limited(1, "batch", low), 0.0)
    pool.submit(task(2, tenant="people"), 0.0)
    assert failures(pool.submit(limited(3, "boss", high), 0.0)) == {1: ErrorCode.OVERLOADED}
    with pytest.raises(TaskError, match="The queue is full"):
        pool.submit(limited(4, "batch", low), 0.0)
    assert places(pool.ended("a", done(0), 1.0)) == [(3, "a")]
    assert places(pool.ended("a", done(3), 2.0)) == [(2, "a")]


def test_priorities_order_the_tasks_of_one_tenant_only() -> None:
    pool = dispatcher("a")
    pool.submit(task(0), 0.0)
    pool.submit(task(1, tenant="x"), 0.0)
    pool.submit(task(2, tenant="y"), 0.0)
    pool.submit(limited(3, "y", KeyLimits(), priority=-5), 0.0)
    order = [0]
    for _ in range(3):
        [(task_id, _)] = places(pool.ended("a", done(order[-1]), 1.0))
        order.append(task_id)
    assert order == [0, 1, 3, 2]


MINUTE = KeyLimits(tokens_per_minute=1000)


def charged(pool: Dispatcher, tenant: str = "x") -> int:
    return 1000 - pool.allowances.remaining(tenant, MINUTE)["tokens"].remaining


def test_answers_that_go_on_elsewhere_are_not_charged_twice() -> None:
    pool = dispatcher("a", "b")
    pool.submit(limited(1, "x", MINUTE, n_tokens=100, n_answer=50, worker=""), 0.0)
    first = pool.tasks[1].worker
    other = "b" if first == "a" else "a"
    pool.started(first, started(1, n_prompt=100), 0.0)
    read(pool, first, 1, n_deltas=3)
    pool.tasks[1].answer.n_predicted = 3
    assert places(pool.worker_lost(first, 1.0)) == [(1, other)]
    pool.started(other, started(1, attempt=1, n_prompt=103), 1.0)
    end = Envelope(TaskKey(1, 1), Done(finish=Finish.EOS, n_prompt=100, n_predicted=20))
    pool.ended(other, end, 2.0)
    assert charged(pool) == 120


def test_what_was_computed_before_a_worker_was_lost_counts_though_its_client_has_gone() -> None:
    pool = dispatcher("a")
    pool.submit(limited(1, "x", MINUTE, n_tokens=100, n_answer=500), 0.0)
    assert charged(pool) == 600
    pool.started("a", started(1, n_prompt=100), 0.0)
    pool.tasks[1].answer.n_predicted = 30
    pool.cancel(1)
    pool.worker_lost("a", 1.0)
    assert charged(pool) == 130


def test_the_choices_of_one_request_divide_a_limit_that_is_too_small_for_them() -> None:
    pool = dispatcher("a", n_slots=8)
    four = Together(4, 400)
    for i in range(4):
        pool.submit(limited(i, "x", MINUTE, n_tokens=100, n_answer=800, together=four), 0.0)
    assert charged(pool) == 1000
    three = Together(3, 1500)
    with pytest.raises(TaskError, match="These 3 prompts of about 1500 tokens are larger"):
        pool.submit(limited(9, "y", MINUTE, n_tokens=500, together=three), 0.0)


@pytest.mark.parametrize("takes", [3, 300])
def test_texts_that_are_embedded_cost_what_was_counted_and_not_what_was_guessed(takes: int) -> None:
    pool = dispatcher("a")
    pool.submit(limited(1, "x", MINUTE, n_tokens=100, takes_credit=False), 0.0)
    assert charged(pool) == 100
    vectors = Embedded(vectors=(b"", b""), n_embd=0, n_tokens=(1, takes - 1))
    pool.ended("a", Envelope(TaskKey(1), vectors), 1.0)
    assert charged(pool) == takes


def test_a_task_that_is_refused_or_never_began_costs_nothing() -> None:
    pool = dispatcher("a", queue_size=1)
    for i in range(2):
        pool.submit(limited(i, "x", MINUTE, n_answer=100), 0.0)
    before = charged(pool)
    with pytest.raises(TaskError, match="The queue is full"):
        pool.submit(limited(2, "x", MINUTE, n_answer=100), 0.0)
    assert charged(pool) == before == 202
    pool.cancel(1)
    assert charged(pool) == 101


class Clocks:
    """Two clocks that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.day_s = 20_000.0 * DAY_S + 100.0

    def allowances(self) -> Allowances:
        return Allowances(lambda: self.now, lambda: self.day_s)


def test_a_clock_that_goes_over_midnight_and_back_loses_no_tokens_of_the_day() -> None:
    clocks = Clocks()
    allowances, limits = clocks.allowances(), KeyLimits(tokens_per_day=100)
    allowances.restore("x", UsageHistory(today=90))
    for n_days in (1, -1, 1):
        clocks.day_s += n_days * DAY_S
        allowances.learn(Spent("x", 0, 1))
        allowances.prune()
    clocks.day_s -= DAY_S
    assert allowances.remaining("x", limits)["tokens-day"].remaining == 9
    clocks.day_s += 3 * DAY_S
    clocks.now += 61
    allowances.prune()
    assert repr(allowances) == "<Allowances accounts=0>"


def test_a_clock_that_swings_around_a_day_gives_its_tokens_once() -> None:
    clocks = Clocks()
    allowances, limits = clocks.allowances(), KeyLimits(tokens_per_day=100)
    allowances.learn(Spent("x", 0, 90))
    for n_days in (-1, 2):
        clocks.day_s += n_days * DAY_S
        allowances.learn(Spent("x", 0, 1))
    clocks.day_s -= DAY_S
    assert allowances.remaining("x", limits)["tokens-day"].remaining == 10


def test_a_minute_moves_and_a_day_ends_at_midnight() -> None:
    clocks = Clocks()
    allowances = clocks.allowances()
    limits = KeyLimits(requests_per_minute=2, tokens_per_day=100)
    allowances.request("x", limits)
    clocks.now += 20
    allowances.request("x", limits)
    with pytest.raises(TaskError) as caught:
        allowances.request("x", limits)
    assert caught.value.detail["retry_after_s"] == 40
    clocks.now += 40.5
    allowances.request("x", limits)
    spec = limited(1, "x", limits, n_tokens=60, n_answer=0)
    allowances.reserve(spec, 0)
    with pytest.raises(TaskError, match="tokens a day") as caught:
        allowances.reserve(dataclasses.replace(spec, task_id=2), 0)
    assert caught.value.detail["retry_after_s"] == DAY_S - 100
    clocks.day_s += DAY_S
    allowances.reserve(dataclasses.replace(spec, task_id=2), 0)
    assert allowances.remaining("x", limits)["tokens-day"].remaining == 40
    clocks.now += 100
    clocks.day_s += DAY_S
    allowances.settle("x", 1, 0)
    allowances.settle("x", 2, 0)
    clocks.day_s += DAY_S
    allowances.prune()
    assert repr(allowances) == "<Allowances accounts=0>"


def test_a_gateway_that_starts_takes_over_what_another_has_counted() -> None:
    clocks = Clocks()
    old, new = clocks.allowances(), clocks.allowances()
    limits = KeyLimits(requests_per_minute=3, tokens_per_minute=100, tokens_per_day=1000)
    for _ in range(3):
        old.request("x", limits)
        clocks.now += 10
    old.reserve(limited(1, "x", limits, n_tokens=30), 0)
    for tenant, history in old.histories():
        assert isinstance(history, UsageHistory)
        new.restore(tenant, history)
    assert new.remaining("x", limits) == old.remaining("x", limits)
    with pytest.raises(TaskError, match="requests a minute"):
        new.request("x", limits)


def test_what_is_given_back_is_taken_from_the_time_at_which_it_was_counted() -> None:
    window = MovingWindow()
    window.add(50, 0.0)
    window.add(30, 10.0)
    window.take_back(20, 0.0, 20.0)
    assert window.parts(20.0) == [(20.0, 30), (10.0, 30)]
    assert window.wait_s(70, 100, 20.0) == 40.0
    assert window.wait_s(101, 100, 20.0) == float("inf")
    window.take_back(30, 10.0, 20.0)
    assert window.parts(20.0) == [(20.0, 30)]
    window.take_back(10, 0.0, 60.0)  # it has left the minute already
    assert window.total(59.9) == 30


def test_a_long_answer_gives_back_nothing_that_others_have_used_since() -> None:
    clocks = Clocks()
    allowances = clocks.allowances()
    limits = KeyLimits(tokens_per_minute=100, tokens_per_day=1000)
    allowances.reserve(limited(1, "x", limits, n_answer=1000), 0)
    clocks.now += 61
    allowances.reserve(limited(2, "x", limits, n_tokens=90, n_answer=0), 0)
    allowances.settle("x", 2, 90)
    clocks.now += 10
    allowances.settle("x", 1, 5)  # of 100 reserved tokens, which do not count any more
    left = allowances.remaining("x", limits)
    assert (left["tokens"].remaining, left["tokens-day"].remaining) == (10, 905)


def test_an_answer_over_midnight_gives_nothing_to_the_new_day() -> None:
    clocks = Clocks()
    allowances, limits = clocks.allowances(), KeyLimits(tokens_per_day=100)
    allowances.reserve(limited(1, "x", limits, n_answer=1000), 0)
    clocks.day_s += DAY_S
    allowances.reserve(limited(2, "x", limits, n_tokens=80, n_answer=0), 0)
    allowances.settle("x", 1, 10)
    assert allowances.remaining("x", limits)["tokens-day"].remaining == 20
    clocks.day_s -= DAY_S
    assert allowances.remaining("x", limits)["tokens-day"].remaining == 90
