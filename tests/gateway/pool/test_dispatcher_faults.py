"""Tasks whose workers die, leave or fail."""

from dataclasses import replace

import pytest

from gateway.pool.actions import Assign, Deliver
from protocol.errors import ErrorCode
from protocol.wire.messages import TaskKey
from tests.gateway.dispatching import (
    broken,
    card,
    dispatcher,
    done,
    failures,
    places,
    started,
    task,
)


def test_what_has_not_started_moves_to_another_worker_unseen() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    pool.submit(task(3), 0.0)
    pool.ended("b", done(2), 0.0)
    assert pool.worker_lost("a", 1.0) == []
    assert pool.ended("b", done(3), 2.0)[1:] == [Assign("b", 1, 1, -1)]


def test_what_comes_back_goes_before_what_waited() -> None:
    pool = dispatcher("a", n_slots=2)
    for i in range(4):
        pool.submit(task(i), 0.0)
    pool.worker_lost("a", 1.0)
    pool.worker_hello("b", "b", "m")
    assert places(pool.worker_ready("b", card(4), 2.0)) == [(i, "b") for i in range(4)]


def test_what_a_client_has_seen_a_part_of_fails_with_its_worker() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    assert pool.started("a", started(1), 0.5)
    pool.prompt_read("a", TaskKey(1), 0.6)
    assert failures(pool.worker_lost("a", 1.0)) == {1: ErrorCode.LOST}
    assert pool.n_tasks == 0


def test_what_has_started_unseen_begins_anew_elsewhere() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    assert pool.started("a", started(1), 0.5)
    assert pool.worker_lost("a", 1.0) == [Assign("b", 1, 1, -1)]
    assert pool.started("b", started(1, attempt=1), 1.5)


def test_an_answer_that_goes_out_whole_begins_anew_until_it_is_there() -> None:
    pool = dispatcher("a", "b")
    pool.submit(replace(task(1), is_whole=True), 0.0)
    pool.started("a", started(1), 0.5)
    pool.prompt_read("a", TaskKey(1), 0.6)
    assert pool.worker_lost("a", 1.0) == [Assign("b", 1, 1, -1)]


@pytest.mark.parametrize("code", [ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE])
def test_what_one_worker_fails_unseen_another_tries(code: ErrorCode) -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    assert pool.ended("a", broken(1, code=code), 1.0) == [Assign("b", 1, 1, -1)]
    assert pool.ended("b", done(1, attempt=1), 2.0) == [Deliver(done(1, attempt=1))]


def test_a_busy_other_is_waited_for_rather_than_asking_the_same_again() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    pool.submit(task(2), 0.0)
    assert pool.ended("a", broken(1), 1.0) == []
    assert places(pool.submit(task(3), 1.0)) == [(3, "a")]
    assert pool.ended("b", done(2), 2.0)[1:] == [Assign("b", 1, 1, -1)]


def test_what_two_workers_failed_is_not_passed_on() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(task(1), 0.0)
    pool.ended("a", broken(1), 1.0)
    failed = broken(1, attempt=1, code=ErrorCode.UNAVAILABLE)
    assert failures(pool.ended("b", failed, 2.0)) == {1: ErrorCode.INTERNAL}
    assert pool.n_tasks == 0
    assert pool.workers["c"].tasks == {}


def test_the_only_workers_failure_is_handed_on() -> None:
    pool = dispatcher("a")
    pool.submit(task(1), 0.0)
    assert pool.ended("a", broken(1), 1.0) == [Deliver(broken(1))]


def test_the_clients_own_mistake_is_not_tried_again() -> None:
    pool = dispatcher("a", "b")
    pool.submit(task(1), 0.0)
    wrong = broken(1, code=ErrorCode.INVALID_REQUEST)
    assert pool.ended("a", wrong, 1.0) == [Deliver(wrong)]


def test_a_task_that_two_workers_died_with_is_not_passed_on() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(task(1), 0.0)
    assert places(pool.worker_lost("a", 1.0)) == [(1, "b")]
    assert failures(pool.worker_lost("b", 2.0)) == {1: ErrorCode.INTERNAL}
    assert pool.workers["c"].tasks == {}


def test_a_worker_that_left_by_its_own_will_killed_nobody() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(task(1), 0.0)
    assert places(pool.worker_lost("a", 1.0, died=False)) == [(1, "b")]
    assert places(pool.worker_lost("b", 2.0)) == [(1, "c")]
