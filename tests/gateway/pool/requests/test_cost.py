"""What a client pays for, and what workers did for it."""

from typing import Any, TypedDict

from gateway.pool.requests.record import cost_of
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.task import MoveCause, RouteReason, Task
from gateway.usage.entry import Tokens
from protocol.errors import ErrorCode
from protocol.wire.facts import Usage
from protocol.wire.messages import Delta, Done, Failed, Finish, Started
from protocol.wire.side_tasks import Embedded


class Counts(TypedDict):
    n_prompt: int
    n_predicted: int
    n_cached: int


def task_of(**spec: Any) -> Task:
    return Task(TaskSpec(task_id=1, model="m", **spec), 0.0)


def begin(task: Task, *, n_prompt: int = 10, n_cached: int = 0, worker: str = "w") -> None:
    task.assign(worker, worker, RouteReason.LOAD, 1.0)
    task.start(Started(slot=0, n_prompt=n_prompt, n_cached=n_cached), 1.0)


def read(task: Task, n_read: int, n_cached: int = 0) -> None:
    task.attempts[task.attempt].account(Usage(n_read=n_read, n_cached=n_cached))


def write(task: Task, n: int) -> None:
    """Take a delta as the task's stream does."""
    delta = Delta(text="x" * n, tokens=(7,) * n, n_predicted=task.answer.n_predicted + n)
    task.answer.begin(delta, 1.0, 2.0)
    task.answer.tokens.extend(delta.tokens)
    task.answer.last_at, task.answer.n_predicted = 2.0, delta.n_predicted


def done(
    n_prompt: int, n_predicted: int, usage: Usage, finish: Finish = Finish.EOS, n_cached: int = 0
) -> Done:
    counts = Counts(n_prompt=n_prompt, n_predicted=n_predicted, n_cached=n_cached)
    return Done(finish=finish, usage=usage, **counts)


def test_an_answer_costs_its_prompt_and_its_tokens() -> None:
    task = task_of()
    begin(task, n_cached=4)
    read(task, 6, 4)
    write(task, 5)
    usage = Usage(n_read=6, n_cached=4, n_predicted=5)
    task.attempt_ended(0, done(10, 5, usage, n_cached=4), 3.0)
    assert cost_of([task]) == Tokens(
        requests=1, prompt=10, cached=4, completion=5, read=6, reused=4, generated=5
    )


def test_a_client_that_left_pays_what_was_computed_until_then() -> None:
    task = task_of()
    begin(task)
    read(task, 10)
    write(task, 3)
    task.cancel(2.0)
    usage = Usage(n_read=10, n_predicted=5)  # two more until the worker heard of it
    task.attempt_ended(0, done(10, 5, usage, finish=Finish.CANCELLED), 3.0)
    assert cost_of([task]) == Tokens(requests=1, prompt=10, completion=5, read=10, generated=5)


def test_a_prompt_that_was_read_in_part_is_paid_in_part() -> None:
    task = task_of()
    begin(task, n_prompt=100, n_cached=10)
    read(task, 30, 10)
    task.cancel(2.0)
    usage = Usage(n_read=50, n_cached=10)
    end = done(100, 0, usage, finish=Finish.CANCELLED, n_cached=10)
    task.attempt_ended(0, end, 3.0)
    assert cost_of([task]) == Tokens(requests=1, prompt=60, cached=10, read=50, reused=10)


def test_an_answer_that_goes_on_elsewhere_is_paid_once_and_counts_twice() -> None:
    task = task_of()
    begin(task, worker="one")
    read(task, 10)
    write(task, 5)
    task.attempt_ended(0, None, 3.0)
    task.requeue(MoveCause.LOST, 3.0)
    begin(task, worker="two")
    read(task, 14)
    write(task, 3)
    task.attempt_ended(1, done(10, 8, Usage(n_read=14, n_predicted=3)), 5.0)
    assert cost_of([task]) == Tokens(requests=1, prompt=10, completion=8, read=24, generated=8)
    assert [one.end for one in task.attempts] == ["lost", "eos"]


def test_a_worker_that_tells_of_a_moved_task_later_still_counts() -> None:
    task = task_of()
    begin(task, worker="one")
    read(task, 10)
    write(task, 5)
    task.requeue(MoveCause.DRAINED, 3.0)
    begin(task, worker="two")
    read(task, 14)
    write(task, 3)
    task.attempt_ended(1, done(10, 8, Usage(n_read=14, n_predicted=3)), 5.0)
    task.end()
    before = task.is_settled
    task.attempt_ended(0, done(10, 7, Usage(n_read=10, n_predicted=7)), 6.0)
    assert (before, task.is_settled) == (False, True)
    cost = cost_of([task])
    assert (cost.completion, cost.generated, cost.read) == (8, 10, 24)
    assert task.attempts[0].end == "drained"


def test_choices_of_one_prompt_pay_it_once() -> None:
    spec = TaskSpec(task_id=1, model="m")
    tasks = [Task(spec, 0.0), Task(spec, 0.0)]
    for n_read, task in zip((10, 0), tasks, strict=True):
        begin(task)
        usage = Usage(n_read=n_read, n_cached=10 - n_read, n_predicted=2)
        task.attempt_ended(0, done(10, 2, usage, n_cached=10 - n_read), 3.0)
    assert cost_of(tasks) == Tokens(
        requests=1, prompt=10, completion=4, read=10, reused=10, generated=4
    )


def test_embeddings_cost_what_they_read() -> None:
    task = task_of(takes_credit=False)
    task.assign("w", "w", RouteReason.LOAD, 1.0)
    vectors = Embedded(vectors=(b"",), n_embd=0, n_tokens=(3, 4), usage=Usage(n_read=7))
    task.attempt_ended(0, vectors, 2.0)
    assert cost_of([task]) == Tokens(requests=1, prompt=7, read=7)


def test_what_never_began_costs_nothing() -> None:
    task = task_of()
    task.assign("w", "w", RouteReason.LOAD, 1.0)
    task.attempt_ended(0, Failed(code=ErrorCode.INVALID_REQUEST, message="no"), 2.0)
    assert cost_of([task]) == Tokens(requests=1)
    assert cost_of([task_of()]) == Tokens(requests=1)
