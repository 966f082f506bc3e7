"""Whatever changes the place of a worker in the order of load makes it be ranked again."""

from collections.abc import Callable

from gateway.pool.routing.load_order import rank_of
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import RouteReason, Task
from gateway.pool.workers.worker import Worker, WorkerState
from protocol.wire.messages import Heartbeat, TaskKey
from tests.gateway.dispatching import card


def place(worker: Worker) -> tuple[object, ...]:
    """Everything that the place of a worker depends on."""
    return (
        *(rank_of(worker), worker.is_ready, worker.model, worker.n_slots, worker.n_free),
        *(worker.n_ahead, worker.n_others, worker.lacks_credit, worker.takes_slotless),
        *(worker.is_sleeping, worker.last_used),
    )


def test_each_change_of_a_place_is_noted() -> None:
    changes: dict[Worker, None] = {}
    worker = Worker("a:1:0.0", "a", "m", changes)
    assert changes == {worker: None}, "a new one is ranked, too"
    tasks = [Task(TaskSpec(task_id=i, model="m"), 0.0) for i in range(3)]
    for task in tasks:
        task.assign(worker.key, "a", RouteReason.LOAD, 0.0)
    shared = Heartbeat(step=1, busy=0, granted=-1, others=1, is_shared=True)
    steps: dict[str, Callable[[], object]] = {
        "open": lambda: worker.open(card(2), is_held=True, granted=0),
        "admit": worker.admit,
        "sleep": lambda: worker.sleep(True),
        "wake": lambda: worker.sleep(False),
        "take": lambda: worker.take(tasks[0], 1),
        "take another": lambda: worker.take(tasks[1], 2),
        "release": lambda: worker.release(tasks[0]),
        "share": lambda: worker.share(shared),
        "abandon": lambda: worker.abandon(tasks[1]),
        "release abandoned": lambda: worker.release_abandoned(TaskKey(1, 0)),
        "eject": worker.eject,
        "let in": worker.let_in,
        "eject again": worker.eject,
        "probe": lambda: worker.allow_probe(True),
        "give back": lambda: worker.give_back(1),
        "take the last": lambda: worker.take(tasks[2], 3),
        "leave": lambda: worker.become(WorkerState.LEAVING),
    }
    changed = set()
    for name, step in steps.items():
        changes.clear()
        before = place(worker)
        step()
        if place(worker) != before:
            changed.add(name)
            assert worker in changes, name
    assert steps.keys() - changed == {"abandon"}


def test_a_heartbeat_without_news_ranks_nothing_again() -> None:
    changes: dict[Worker, None] = {}
    worker = Worker("a:1:0.0", "a", "m", changes)
    worker.open(card(2), is_held=False, granted=0)
    changes.clear()
    worker.share(Heartbeat(step=2, busy=0))
    worker.sleep(False)
    assert not changes
