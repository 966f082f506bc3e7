"""Predicted waits, before and after measurements."""

import pytest

from gateway.pool.routing.load import PendingPrefill, Ratio, Throughput, crowding_s, slot_wait_s
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import RouteReason, Task, TaskState
from protocol.wire.messages import Started


def test_a_mean_forgets_what_is_long_ago() -> None:
    one = Ratio(500.0, 0.05)
    assert one.value == 500.0
    for _ in range(3):
        one.add(100, 1)
    assert one.value == pytest.approx(100, rel=0.1)
    for _ in range(30):
        one.add(900, 1)
    assert one.value == pytest.approx(900, rel=0.1)
    assert repr(Ratio(2.0, 1.0)) == "<Ratio 2>"


def test_a_worker_that_was_not_measured_is_taken_for_what_the_others_are() -> None:
    model = Throughput()
    measured, fresh = Throughput(model), Throughput(model)
    measured.prompt_per_s.add(4000, 1)
    assert fresh.prompt_per_s.value == pytest.approx(measured.prompt_per_s.value, rel=0.1)
    fresh.prompt_per_s.add(1000, 1)
    assert fresh.prompt_per_s.value < 1200 < measured.prompt_per_s.value


def task(task_id: int) -> Task:
    return Task(TaskSpec(task_id=task_id, model="m"), 0.0)


def begin(pending: PendingPrefill, task: Task, n_tokens: int, now: float) -> None:
    """Let the worker of a task read so much of its prompt from now on."""
    if task.state is TaskState.WAITING:
        task.assign("a", "a", RouteReason.LOAD, now)
    task.start(Started(slot=0, n_prompt=n_tokens), now)
    pending.started(task, now)


def test_reading_is_measured_over_all_prompts_at_once() -> None:
    pending = PendingPrefill(throughput := Throughput())
    tasks = [task(i) for i in range(4)]
    for one in tasks:
        pending.assigned(one, 600)
        begin(pending, one, 600, 10.0)
    for one in tasks:
        pending.read(one, 12.0)
    assert throughput.prompt_per_s.value == pytest.approx(1200, rel=0.2)


def test_short_prompts_say_nothing_of_the_speed() -> None:
    pending, one = PendingPrefill(throughput := Throughput()), task(1)
    pending.assigned(one, 3)
    begin(pending, one, 3, 0.0)
    pending.read(one, 5.0)
    assert throughput.prompt_per_s.value == 500.0


def test_what_is_assigned_must_be_read_before() -> None:
    pending = PendingPrefill(Throughput())
    first, second, stranger = task(1), task(2), task(9)
    pending.assigned(first, 1000)
    pending.assigned(second, 500)
    assert pending.wait_s(7.0) == pytest.approx(3.0)
    begin(pending, first, 250, 8.0)
    assert pending.wait_s(8.5) == pytest.approx(1.0)
    pending.dropped(second)
    assert pending.wait_s(60.0) == 0.0
    pending.read(first, 60.0)
    begin(pending, stranger, 5, 0.0)
    pending.read(stranger, 0.0)
    assert pending.wait_s(60.0) == 0.0
    assert repr(pending).startswith("<PendingPrefill prompts=0 <Throughput prompt=")


def test_a_slot_is_waited_for_as_long_as_tasks_last() -> None:
    throughput = Throughput()
    for _ in range(20):
        throughput.service_s.add(8.0, 1)
    assert slot_wait_s(throughput, 4, 3) == 0
    assert slot_wait_s(throughput, 4, 4) == pytest.approx(2.0, rel=0.2)
    assert slot_wait_s(throughput, 4, 5) == pytest.approx(4.0, rel=0.2)


def test_company_costs_time() -> None:
    assert (
        crowding_s(Throughput(), 0) == 0 < crowding_s(Throughput(), 1) < crowding_s(Throughput(), 5)
    )
