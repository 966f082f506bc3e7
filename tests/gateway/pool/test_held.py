"""A held worker, which is being tried, gets no client's task before it is admitted."""

from pathlib import Path

from gateway.pool.dispatch.dispatcher import Dispatcher
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from tests.fakes.echo import FakeOptions
from tests.fakes.worker import FakeWorker
from tests.gateway.dispatching import call, card, dispatcher, done, places, started, task
from tests.gateway.rig import Rig


def with_held(*others: str) -> Dispatcher:
    pool = dispatcher(*others)
    pool.worker_hello("new", "new", "m")
    assert pool.worker_ready("new", card(n_slots=4), 0.0, is_held=True) == []
    return pool


def test_a_held_worker_gets_no_task_however_many_wait() -> None:
    pool = with_held("old")
    assert places(pool.submit(task(1), 0.0)) == [(1, "old")]
    assert places(pool.submit(task(2), 0.0)) == []
    assert len(pool.queue) == 1


def test_it_gets_them_once_it_is_admitted() -> None:
    pool = with_held("old")
    for number in (1, 2, 3):
        pool.submit(task(number), 0.0)
    assert places(pool.worker_admitted("new", 1.0)) == [(2, "new"), (3, "new")]
    assert pool.worker_admitted("new", 1.0) == []


def test_a_task_without_a_slot_goes_to_it_only_by_its_name() -> None:
    pool = with_held()
    assert places(pool.submit(call(1), 0.0)) == []
    assert places(pool.submit(call(2, worker="new"), 0.0)) == [(2, "new")]
    assert pool.started("new", started(2), 0.0)
    assert len(pool.ended("new", done(2), 0.0)) == 1


def test_its_slots_have_no_ids_before() -> None:
    pool = with_held("old")
    assert pool.slots.n_slots("m") == 1
    assert pool.slots.global_id("new", 0) == -1
    pool.worker_admitted("new", 1.0)
    assert pool.slots.n_slots("m") == 5


def test_a_held_worker_that_is_lost_leaves_nothing() -> None:
    pool = with_held()
    pool.submit(task(1), 0.0)
    pool.worker_lost("new", 1.0)
    assert pool.workers == {}
    assert len(pool.queue) == 1


async def test_over_the_wire(tmp_path: Path) -> None:
    held = FakeOptions(name="new", is_held=True, n_slots=8)
    async with (
        Rig(tmp_path) as rig,
        rig.workers(FakeOptions(name="old")),
        FakeWorker(rig.endpoint, held) as new,
    ):
        await rig.logged("worker ready worker=new")
        assert rig.pool.health().n_workers == 1
        request = m.Generate(prompt="a b", params=SamplingParams(n_predict=2))
        streams = [rig.pool.submit(request, model="fake") for _ in range(3)]
        for stream in streams:
            await stream.result()
        assert not new.envelopes
        await new.admit()
        await rig.until(2)
