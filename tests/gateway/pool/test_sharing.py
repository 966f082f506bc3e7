"""A gateway that shares workers with others: credits as granted, demand, settings."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.model_settings import ModelSettings
from gateway.pool.plausible import implausible
from gateway.pool.workers.slot_map import ExpectedWorker, SlotMap
from protocol.wire.facts import SystemPrompt
from protocol.wire.messages import Envelope, Heartbeat, TaskKey
from protocol.wire.sharing import (
    CONFIGURED,
    MAX_VERSIONS,
    Demand,
    SettingsReport,
    Version,
    following,
    is_newer,
)
from protocol.wire.side_tasks import LoraListed
from tests.gateway.dispatching import call, card, dispatcher, done, places, task
from worker.link.gateways.settings import WorkerSettings, impossible


def heartbeat(granted: int, others: int = 0, *, is_shared: bool = True) -> Heartbeat:
    return Heartbeat(step=1, busy=0, granted=granted, others=others, is_shared=is_shared)


def test_no_more_is_sent_than_was_granted() -> None:
    pool = dispatcher("a")
    assert pool.worker_shares("a", heartbeat(-1), 0.0) == []
    assert places(pool.submit(task(1), 0.0)) == []
    assert places(pool.worker_shares("a", heartbeat(0), 1.0)) == [(1, "a")]
    assert pool.workers["a"].n_credits == 1


def test_a_credit_that_is_taken_with_the_end_of_a_task_is_not_used_again() -> None:
    pool = dispatcher("a")
    pool.worker_shares("a", heartbeat(0), 0.0)
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    assert pool.worker_shares("a", heartbeat(-1), 1.0) == []
    assert places(pool.ended("a", done(1), 1.0)) == []
    assert len(pool.queue) == 1


def test_what_is_unused_is_returned_and_not_used_any_more() -> None:
    pool = dispatcher("a")
    worker = pool.workers["a"]
    assert [worker.give_back(n) for n in (-3, 0, 9, 9)] == [0, 0, 1, 0]
    assert places(pool.submit(task(1), 0.0)) == []
    assert places(pool.worker_shares("a", heartbeat(1), 1.0)) == [(1, "a")]


def test_slots_that_others_use_are_not_free() -> None:
    pool = dispatcher("a")
    pool.worker_shares("a", heartbeat(0, others=1), 0.0)
    worker = pool.workers["a"]
    assert (worker.n_busy, worker.n_free, worker.n_ahead) == (1, 0, 0)
    assert worker.has_place_in(0)  # a task that must have it waits in the worker, as any other
    pool.worker_shares("a", heartbeat(0, others=9), 0.0)
    assert (worker.n_busy, worker.n_free, worker.n_ahead) == (1, 0, 8)


def test_shared_workers_are_counted_and_forgotten() -> None:
    pool = dispatcher("a", "b")
    pool.worker_shares("a", heartbeat(0), 0.0)
    pool.worker_shares("b", heartbeat(0), 0.0)
    pool.worker_shares("b", heartbeat(0, is_shared=False), 0.0)
    assert pool.connected.n_shared == 1
    pool.worker_lost("a", 1.0)
    assert pool.connected.n_shared == 0


def test_demand_is_told_when_tasks_begin_and_cease_to_wait() -> None:
    pool = dispatcher("a", "b")
    for key in ("a", "b"):
        pool.worker_shares(key, heartbeat(-1), 0.0)
    pool.submit(task(1), 2.0)
    asked = pool.demand.crossed(5.0)
    assert sorted(asked) == [(key, Demand(waiting=1, oldest_s=3.0)) for key in "ab"]
    assert pool.demand.crossed(6.0) == [], "they know it"
    pool.submit(task(2), 6.0)
    assert pool.demand.crossed(6.0) == []
    assert {demand.waiting for _, demand in pool.demand.changed(7.0)} == {2}
    pool.cancel(1)
    pool.cancel(2)
    assert sorted(pool.demand.crossed(8.0)) == [(key, Demand(waiting=0)) for key in "ab"]


def test_only_workers_with_a_free_slot_are_asked_where_there_are_some() -> None:
    pool = dispatcher("a", "b")
    pool.worker_shares("a", heartbeat(-1, others=1), 0.0)
    pool.worker_shares("b", heartbeat(-1, others=0), 0.0)
    pool.submit(task(1), 0.0)
    assert [key for key, _ in pool.demand.crossed(0.0)] == ["b"]
    pool.worker_shares("b", heartbeat(-1, others=1), 1.0)
    assert [key for key, _ in pool.demand.changed(1.0)] == ["a"]


def test_nothing_is_sent_ahead_while_a_slot_is_free_elsewhere() -> None:
    pool = dispatcher("full", "free", n_prefetch=1)
    pool.worker_shares("full", heartbeat(0, others=1), 0.0)
    pool.worker_shares("free", heartbeat(-2), 0.0)
    assert places(pool.submit(task(1), 0.0)) == []
    assert [key for key, _ in pool.demand.crossed(0.0)] == ["free"]
    assert places(pool.worker_shares("free", heartbeat(-1), 1.0)) == [(1, "free")]


def test_a_task_is_sent_ahead_once_others_use_the_free_slot() -> None:
    pool = dispatcher("full", "free", n_prefetch=1)
    pool.worker_shares("full", heartbeat(0, others=1), 0.0)
    pool.worker_shares("free", heartbeat(-2), 0.0)
    pool.submit(task(1), 0.0)
    assert places(pool.worker_shares("free", heartbeat(-2, others=1), 1.0)) == [(1, "full")]


def test_who_has_a_credit_asks_for_none() -> None:
    pool = dispatcher("a")
    pool.worker_shares("a", heartbeat(0), 0.0)
    pool.submit(call(1), 0.0)
    assert pool.demand.changed(0.0) == [] == pool.demand.crossed(0.0)


def test_a_task_for_a_slot_asks_only_its_worker() -> None:
    pool = dispatcher("a", "b")
    for key in ("a", "b"):
        pool.worker_shares(key, heartbeat(-1), 0.0)
    pool.submit(task(1, worker="b", slot=0), 4.0)
    assert pool.demand.changed(5.0) == [("b", Demand(waiting=1, oldest_s=1.0))]
    assert places(pool.worker_shares("b", heartbeat(0), 5.0)) == [(1, "b")]


# ---- settings ---------------------------------------------------------------------------------


def told(count: int, gateway: str, scale: float) -> SettingsReport:
    return SettingsReport(scales=((0, scale),), scales_version=(count, gateway))


def test_a_new_worker_gets_what_was_set() -> None:
    settings = ModelSettings("g")
    settings.set_scales("m", ((0, 0.5),))
    settings.set_system_prompt("m", SystemPrompt(prompt="p", assistant_name="n"))
    orders = settings.joined("w", "m")
    assert [type(one.payload).__name__ for one in orders] == ["SetLora", "SetSystemPrompt"]
    assert len({one.task for one in orders}) == 2
    assert settings.due() == []
    assert settings.joined("other", "n") == []


def test_a_gateway_learns_the_newest_and_passes_it_on() -> None:
    settings = ModelSettings("g")
    settings.joined("w-1", "m")
    settings.joined("w-2", "m")
    settings.reported("w-1", told(3, "x", 0.25))
    ((key, order),) = settings.due()
    assert key == "w-2" and order.payload.version == (3, "x")  # type: ignore[attr-defined]  # SetLora
    assert settings.due() == []
    settings.reported("w-2", told(2, "y", 0.75))
    assert settings.due() == [], "an older one changes nothing"


def test_gateways_that_set_at_once_agree() -> None:
    one, other = ModelSettings("a"), ModelSettings("b")
    orders = [one.set_scales("m", ((0, 0.1),)), other.set_scales("m", ((0, 0.9),))]
    (newest,) = [order for order in orders if order.version == (1, "b")]
    for settings in (one, other):
        settings.joined("w", "m")
        settings.reported("w", told(*newest.version, scale=0.9))
        settings.joined("late", "m")
    assert one.set_scales("m", ()).version == (2, "a")
    assert other.joined("w-3", "m")[0].payload == newest


def test_a_setting_of_our_own_is_newer_than_what_was_learned() -> None:
    settings = ModelSettings("a")
    settings.joined("w", "m")
    settings.reported("w", told(7, "z", 0.5))
    assert settings.set_scales("m", ()).version == (8, "a")


@pytest.mark.parametrize("n", [MAX_VERSIONS - 1, MAX_VERSIONS // 2, 1])
def test_no_report_is_so_new_that_nothing_newer_can_be_set(n: int) -> None:
    settings = ModelSettings("a")
    settings.joined("thief", "m")
    settings.reported("thief", told(n, "z", 0.5))
    (order,) = settings.joined("w", "m")
    worker = WorkerSettings()
    for sent in (order, Envelope(TaskKey(1), settings.set_scales("m", ((0, 0.1),)))):
        assert impossible(sent.payload) is None
        carried_out = worker.take(sent)
        assert carried_out == sent, "the worker takes it for the newest"
        worker.end(sent.task, LoraListed(adapters=()))
    known = worker.known
    assert known is not None and not implausible(known)
    settings.reported("w", known)
    settings.reported("thief", told(n, "z", 0.5))
    ((key, back),) = settings.due()
    assert key == "thief" and back.payload.scales == ((0, 0.1),)  # type: ignore[attr-defined]


@given(st.lists(st.tuples(st.integers(0, 5) | st.integers(0, MAX_VERSIONS - 1), st.text())))
def test_of_two_versions_one_is_newer(versions: list[Version]) -> None:
    for one, other in itertools.combinations(set(versions), 2):
        assert is_newer(one, other) is not is_newer(other, one)
    for one in versions:
        assert not is_newer(one, one)
        assert is_newer(following(one, "g"), one)
        assert one == CONFIGURED or is_newer(one, CONFIGURED)


def test_workers_that_nobody_knows_are_ignored() -> None:
    settings = ModelSettings("a")
    settings.reported("gone", told(7, "z", 0.5))
    assert settings.set_scales("m", ()).version == (1, "a")
    settings.left("gone")


# ---- slot ids ---------------------------------------------------------------------------------


def test_a_worker_that_is_down_keeps_its_ids() -> None:
    expected = [ExpectedWorker(f"w-{n}", "m", 2) for n in (1, 2, 10)]
    one, other = SlotMap(), SlotMap()
    for slots in (one, other):
        slots.expect(expected)
    one.reserve("w-10", card(2))
    for name in ("w-1", "w-2", "w-10"):
        other.reserve(name, card(2))
    assert one.base("w-10") == other.base("w-10") == 4
    assert one.n_slots("m") == 6
    assert one.locate("m", 0) == ("w-1", 0), "a task for it waits until it is there"


def test_a_worker_that_takes_the_place_of_a_configured_one_takes_its_ids_too() -> None:
    slots = SlotMap()
    slots.expect([ExpectedWorker("a", "m", 2), ExpectedWorker("b", "m", 2)])
    slots.reserve("a~2", card(2))
    assert (slots.base("a~2"), slots.base("b")) == (0, 2)
    slots.forget("b")
    assert slots.n_slots("m") == 2


def test_a_worker_may_have_other_slots_than_were_expected() -> None:
    slots = SlotMap()
    slots.expect([ExpectedWorker("a", "m", 2), ExpectedWorker("b", "m", 2)])
    slots.reserve("a", card(5))
    assert slots.base("b") == 5
    slots.expect([ExpectedWorker("a", "m", 2)])
    assert slots.base("b") == 5, "what a worker says counts"


@given(st.lists(st.tuples(st.sampled_from("mn"), st.integers(0, 4)), min_size=1, max_size=9))
def test_every_id_has_one_slot_and_ids_beyond_wrap(workers: list[tuple[str, int]]) -> None:
    slots = SlotMap()
    slots.expect([ExpectedWorker(f"w-{i}", *one) for i, one in enumerate(workers)])
    places = [(f"w-{i}", model, k) for i, (model, n) in enumerate(workers) for k in range(n)]
    assert [slots.owner(i) for i in range(len(places))] == places
    assert slots.owner(len(places)) is None
    for model in "mn":
        own = [(name, k) for name, one, k in places if one == model]
        assert slots.n_slots(model) == len(own)
        for i in range(2 * len(places)):
            is_own = i < len(places) and places[i][1] == model
            wrapped = own[i % len(own)] if own else ("", -1)
            want = (places[i][0], places[i][2]) if is_own else wrapped
            assert slots.locate(model, i) == want
