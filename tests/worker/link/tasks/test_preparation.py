"""Threads of long work: order, time limits, and what becomes of those that do not end."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from worker.link.tasks.preparation import Overrun, Preparation, PreparationJob


class Bench:
    """A preparation whose results are collected as they come."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.preparation = Preparation(self.woken.set)
        self.ended: list[PreparationJob] = []
        self.given_up: list[PreparationJob] = []

    def submit(self, label: str, work: Callable[[], object], **fields: object) -> PreparationJob:
        job = PreparationJob(label, work, **{"limit_s": 60.0, **fields})  # type: ignore[arg-type]
        self.preparation.submit(job)
        return job

    def until(self, holds: Callable[[], bool]) -> None:
        """Take and watch until something is so."""
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline, self.preparation
            self.woken.wait(0.005)
            self.woken.clear()
            self.ended += self.preparation.take()
            self.given_up += self.preparation.overdue()

    @property
    def labels(self) -> list[str]:
        return [job.label for job in self.ended]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.preparation.close()


def loop() -> None:
    """Never end, and take every exception for nothing."""
    while True:
        try:
            sum(range(100))
        except Exception:
            continue


def test_results_and_exceptions_come_back(bench: Bench) -> None:
    bench.submit("good", lambda: 7)
    bench.submit("bad", lambda: 1 // 0)
    bench.until(lambda: len(bench.ended) == 2)
    outcomes = {job.label: job.outcome for job in bench.ended}
    assert outcomes["good"] == 7
    assert isinstance(outcomes["bad"], ZeroDivisionError)
    assert not bench.preparation


def test_code_that_loops_is_ended_and_the_others_go_on(bench: Bench) -> None:
    hostile = [bench.submit(f"hostile-{i}", loop, limit_s=0.02) for i in range(5)]
    bench.submit("good", lambda: "done")
    bench.until(lambda: bench.labels == ["good"])
    bench.until(lambda: len(bench.given_up) == len(hostile))
    assert all(isinstance(job.outcome, Overrun) for job in bench.given_up)
    bench.until(lambda: not bench.preparation)  # their threads have ended, too
    assert bench.labels == ["good"]


def test_a_call_that_does_not_return_is_told_as_stuck(bench: Bench) -> None:
    hangs = threading.Event()
    job = bench.submit("stuck task=3", hangs.wait, limit_s=0.01)
    bench.until(lambda: bench.given_up == [job])
    assert bench.preparation.stuck(60) is None
    bench.until(lambda: bench.preparation.stuck(0.01) is job)
    hangs.set()
    bench.until(lambda: not bench.preparation)
    assert bench.preparation.stuck(0) is None


def test_large_jobs_leave_a_thread_to_the_small_ones(bench: Bench) -> None:
    opened = threading.Event()
    for i in range(3):
        bench.submit(f"large-{i}", opened.wait, is_large=True)
    bench.submit("small", lambda: None)
    bench.until(lambda: bench.labels == ["small"])
    opened.set()
    bench.until(lambda: len(bench.ended) == 4)
    assert bench.labels == ["small", "large-0", "large-1", "large-2"]


def test_an_order_comes_after_all_before_it_and_before_all_after_it(bench: Bench) -> None:
    opened = threading.Event()
    bench.submit("before", opened.wait)
    bench.submit("order", lambda: None, is_alone=True)
    bench.submit("after", lambda: None)
    bench.until(lambda: bool(bench.preparation))
    opened.set()
    bench.until(lambda: len(bench.ended) == 3)
    assert bench.labels == ["before", "order", "after"]


def test_a_job_that_has_not_started_can_be_taken_back(bench: Bench) -> None:
    opened = threading.Event()
    done: list[str] = []
    running = [bench.submit(f"running-{i}", opened.wait) for i in range(2)]
    waiting = bench.submit("waiting", lambda: done.append("waiting"))
    bench.preparation.discard(waiting)
    bench.preparation.discard(running[0])
    opened.set()
    bench.until(lambda: not bench.preparation)
    assert (sorted(bench.labels), done) == (["running-0", "running-1"], [])


def test_a_thread_that_waits_holds_on_to_nothing(bench: Bench) -> None:
    class Model:
        """What must be freed when the worker sleeps."""

    freed: list[bool] = []
    model = Model()

    def work(model: Model = model) -> int:
        return id(model)

    weakref.finalize(model, freed.append, True)
    bench.submit("work", work)
    bench.until(lambda: bool(bench.ended))
    bench.ended.clear()
    del work, model
    bench.until(lambda: bool(freed))


def test_the_jobs_of_one_gateway_do_not_hold_up_those_of_another(bench: Bench) -> None:
    started, go = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        started.release()
        go.wait()

    for number in range(200):
        bench.submit(f"flood-{number}", wait, is_alone=number % 2 == 1, connection=1)
    started.acquire()
    bench.submit("other", lambda: None, connection=2)
    go.set()
    bench.until(lambda: "other" in bench.labels)
    assert len(bench.ended) < 20
