"""Requests that kill workers are refused after two deaths; those that were only there never are."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.pool.dispatch.actions import Action, CancelTask
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.recovery.quarantine import HELD_S, REFUSED_S
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.suspect import Fingerprint
from gateway.pool.tasks.task import Task
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Generate, PromptRead, TaskKey
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Rerank
from tests.gateway.dispatching import (
    card,
    dispatcher,
    done,
    failures,
    pauses,
    places,
    proceed,
    read,
    started,
    task,
)


def named(task_id: int, prompt: str, **params: object) -> TaskSpec:
    """A task for a request with this prompt."""
    request = Generate(prompt=prompt, params=SamplingParams(**params))  # type: ignore[arg-type]  # a test's choice
    return replace(task(task_id), fingerprint=Fingerprint(request))


def restart(pool: Dispatcher, key: str, now: float, n_slots: int = 8) -> list[tuple[int, str]]:
    pool.worker_hello(key, key.split(":", maxsplit=1)[0], "m")
    return places(pool.worker_ready(key, card(n_slots), now))


def eight_streams() -> Dispatcher:
    """Let worker `a` write for eight tasks, and `b` wait beside it."""
    pool = dispatcher("a", n_slots=8)
    for i in range(8):
        pool.submit(named(i, f"prompt {i}"), 0.0)
        read(pool, "a", i)
    restart(pool, "b", 0.5)
    return pool


def test_a_fingerprint_is_of_the_prompt_and_the_parameters_but_not_of_the_seed() -> None:
    def digest(prompt: str, **params: object) -> bytes:
        fingerprint = named(1, prompt, **params).fingerprint
        assert fingerprint is not None
        return fingerprint.digest

    assert digest("x") == digest("x", seed=4, stream=True, id_slot=1)
    assert len({digest("x"), digest("y"), digest("x", top_k=3)}) == 3
    side = [Fingerprint(Rerank(query=query, documents=("a",))).digest for query in ("q", "r", "q")]
    assert side[0] == side[2] != side[1]


def test_a_request_that_kills_two_workers_is_refused_for_an_hour() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(named(1, "poison"), 0.0)
    assert places(pool.worker_lost("a", 1.0)) == [(1, "b")]
    assert pool.worker_lost("b", 2.0) == []
    assert pool.expire(2.0 + HELD_S - 0.1) == []
    assert failures(pool.expire(2.0 + HELD_S)) == {1: ErrorCode.QUARANTINED}
    assert pool.workers["c"].tasks == {}
    with pytest.raises(TaskError) as caught:
        pool.submit(named(2, "poison", seed=3), 20.0)
    assert caught.value.code is ErrorCode.QUARANTINED
    (view,) = pool.quarantine.views(20.0)
    assert (view.n_deaths, view.n_refused, view.age_s) == (2, 1, 19.0)
    assert places(pool.submit(named(3, "innocent"), 20.0)) == [(3, "c")]
    assert places(pool.submit(named(4, "poison"), 13.0 + REFUSED_S)) == []  # c is busy
    assert pool.quarantine.views(13.0 + REFUSED_S) == ()


def test_an_operator_lets_a_request_in_again() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(named(1, "poison"), 0.0)
    pool.worker_lost("a", 1.0)
    pool.worker_lost("b", 2.0)
    pool.expire(12.0)
    (view,) = pool.quarantine.views(12.0)
    assert pool.quarantine.release("00") == 0
    assert pool.quarantine.release(view.fingerprint) == 1
    assert places(pool.submit(named(2, "poison"), 13.0)) == [(2, "c")]


def test_the_first_death_counts_also_if_the_client_sends_the_request_again() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(named(1, "poison"), 0.0)
    pool.cancel(1)
    pool.worker_lost("a", 1.0)
    pool.submit(named(2, "poison", seed=9), 2.0)
    pool.worker_lost("b", 3.0)
    assert failures(pool.expire(14.0)) == {2: ErrorCode.QUARANTINED}


def test_eight_streams_on_a_killed_worker_are_tried_one_by_one_and_cleared() -> None:
    pool = eight_streams()
    assert places(pool.worker_lost("a", 1.0)) == [(i, "b") for i in range(8)]
    assert proceed(pauses(pool, "b", 3)) == [(3, "b")]
    for i in (0, 1, 2, 4, 5, 6, 7):
        assert pauses(pool, "b", i) == []
    for i, following in zip((3, 0, 1, 2, 4, 5, 6), (0, 1, 2, 4, 5, 6, 7), strict=True):
        assert read(pool, "b", i, attempt=1, n_deltas=2) == []
        assert proceed(read(pool, "b", i, attempt=1, n_deltas=1)) == [(following, "b")]
    read(pool, "b", 7, attempt=1)
    assert not any(task.is_on_trial for task in pool.tasks.values())
    assert repr(pool.quarantine) == "<Quarantine suspects=0>"


def test_a_suspect_without_an_answer_is_read_when_those_with_one_have_gone_on() -> None:
    pool = dispatcher("a", n_slots=8, settle_s=0.1)
    for i in range(3):
        pool.submit(named(i, f"prompt {i}"), 0.0)
    read(pool, "a", 2)
    restart(pool, "b", 0.5)
    assert places(pool.worker_lost("a", 1.0)) == [(2, "b")]
    assert proceed(pauses(pool, "b", 2, now=1.05)) == []  # other workers may die at the same stroke
    assert places(actions := pool.expire(1.2)) == []
    assert proceed(actions) == [(2, "b")]
    assert places(read(pool, "b", 2, attempt=1)) == [(0, "b")]
    assert places(read(pool, "b", 0, attempt=1)) == [(1, "b")]


def test_what_pauses_is_not_accused_of_the_death_of_its_worker() -> None:
    pool = eight_streams()
    pool.worker_lost("a", 1.0)
    for i in range(6):
        pauses(pool, "b", i)
    restart(pool, "c", 1.5)
    assert len(places(pool.worker_lost("b", 2.0))) == 7
    suspects = [task.suspect for task in pool.tasks.values()]
    assert [suspect.n_deaths for suspect in suspects if suspect is not None] == [2, *[1] * 7]
    for i in range(1, 8):
        pauses(pool, "c", i, attempt=2)
        read(pool, "c", i, attempt=2)
    assert failures(pool.expire(2.0 + HELD_S)) == {0: ErrorCode.QUARANTINED}


def test_after_two_deaths_a_request_has_a_turn_of_its_own_however_long() -> None:
    pool = dispatcher("a", "b", "c", n_slots=2)
    for i in range(2):
        pool.submit(named(i, f"prompt {i}"), 0.0)
    where = [pool.tasks[i].worker for i in range(2)]
    assert where == ["a", "b"]
    read(pool, "a", 0)
    read(pool, "b", 1)
    pool.worker_lost("a", 1.0)
    pool.worker_lost("b", 1.0)
    pool.tasks[0].suspect.n_deaths = 2  # type: ignore[union-attr]  # it has one
    assert proceed(pauses(pool, "c", 0)) == [(0, "c")]
    pauses(pool, "c", 1, attempt=pool.tasks[1].attempt)
    assert proceed(pool.expire(100.0)) == []
    assert proceed(read(pool, "c", 0, attempt=1)) == [(1, "c")]


def test_what_pauses_goes_on_when_an_operator_has_let_its_request_in() -> None:
    pool = dispatcher("a", n_slots=2, settle_s=0.1)
    pool.submit(named(0, "prompt"), 0.0)
    read(pool, "a", 0)
    restart(pool, "b", 0.5)
    pool.worker_lost("a", 1.0)
    suspect = pool.tasks[0].suspect
    assert suspect is not None
    suspect.refused_until = 50.0  # another task with this request killed another worker
    pauses(pool, "b", 0)
    assert pool.quarantine.release() == 1
    assert proceed(pool.expire(2.0)) == [(0, "b")]


def test_what_pauses_ends_when_its_request_is_refused() -> None:
    pool = dispatcher("a", n_slots=2)
    pool.submit(named(0, "prompt"), 0.0)
    read(pool, "a", 0)
    restart(pool, "b", 0.5)
    pool.worker_lost("a", 1.0)
    suspect = pool.tasks[0].suspect
    assert suspect is not None
    suspect.held_until = 5.0
    assert proceed(pauses(pool, "b", 0)) == []
    actions = pool.expire(6.0)
    assert failures(actions) == {0: ErrorCode.QUARANTINED}
    assert CancelTask("b", 0, 1) in actions


def test_a_prompt_that_takes_long_to_read_does_not_keep_other_suspects_waiting() -> None:
    pool = dispatcher("a", n_slots=2)
    for i in range(2):
        pool.submit(named(i, f"prompt {i}"), 0.0)
    restart(pool, "b", 0.5)
    assert places(pool.worker_lost("a", 1.0)) == [(0, "b")]
    assert places(pool.expire(3.9)) == []
    assert places(pool.expire(4.1)) == [(1, "b")]


def test_of_eight_streams_only_the_one_that_was_tried_is_held_and_the_others_go_on() -> None:
    pool = eight_streams()
    pool.worker_lost("a", 1.0)
    for i in range(3):
        read(pool, "b", i, attempt=1)
    read(pool, "b", 3, attempt=1, n_deltas=1)  # the last steps of a worker may be lost with it
    restart(pool, "c", 2.0)
    pool.worker_lost("b", 3.0)
    held = pool.tasks[3]
    assert held.worker == ""
    while unread := [task for task in pool.workers["c"].tasks.values() if not task.is_trusted]:
        read(pool, "c", unread[0].task_id, attempt=unread[0].attempt)
    assert set(pool.workers["c"].tasks) == {0, 1, 2, 4, 5, 6, 7}
    assert failures(pool.expire(13.1)) == {3: ErrorCode.QUARANTINED}
    assert set(pool.tasks) == {0, 1, 2, 4, 5, 6, 7}


def test_a_death_without_the_suspect_shows_that_it_was_not_the_cause() -> None:
    pool = dispatcher("a", "b", "c", "d")
    pool.submit(named(1, "innocent"), 0.0)
    pool.worker_lost("a", 1.0)
    pool.worker_lost("b", 2.0)
    assert pool.tasks[1].worker == ""
    pool.worker_lost("c", 3.0)
    assert pool.tasks[1].worker == "d"
    assert pool.ended("d", done(1, attempt=2), 4.0)
    assert pool.expire(20.0) == []
    assert not pool.quarantine.views(20.0)


def test_workers_that_die_at_one_stroke_count_once() -> None:
    pool = dispatcher("a", "b", settle_s=0.1)
    pool.submit(named(1, "innocent"), 0.0)
    pool.worker_lost("a", 1.0)
    assert pool.tasks[1].worker == ""
    pool.worker_lost("b", 1.01)
    restart(pool, "c", 1.02)
    assert places(pool.expire(1.05)) == []
    assert places(pool.expire(1.11)) == [(1, "c")]


def test_two_choices_on_two_workers_that_die_at_one_stroke_are_not_held() -> None:
    pool = dispatcher("a", "b", settle_s=0.1, n_slots=2)
    for i in range(2):
        pool.submit(named(i, "the same", seed=i), 0.0)
    assert [pool.tasks[i].worker for i in range(2)] == ["a", "b"]
    for i, worker in enumerate("ab"):
        read(pool, worker, i)
    assert places(pool.worker_lost("a", 1.0)) == [(0, "b")]  # and pauses there
    pool.worker_lost("b", 1.02)
    assert len(restart(pool, "c", 1.5)) == 2
    assert proceed(pauses(pool, "c", 0, attempt=2, now=1.6)) == [(0, "c")]
    assert failures(pool.expire(1.02 + HELD_S)) == {}


def test_a_drain_or_an_order_to_stop_counts_against_nobody() -> None:
    pool = dispatcher("a", "b", "c")
    pool.submit(named(1, "innocent"), 0.0)
    pool.worker_lost("a", 1.0, died=False)
    pool.worker_lost("b", 2.0, died=False)
    assert pool.tasks[1].worker == "c"
    assert not pool.tasks[1].is_on_trial


def test_a_request_that_goes_a_little_further_each_time_is_refused_in_the_end() -> None:
    pool = dispatcher("a:0")
    pool.submit(named(1, "poison"), 0.0)
    n_deaths = 0
    while 1 in pool.tasks:
        task = pool.tasks[1]
        read(pool, task.worker, 1, attempt=task.attempt, n_deltas=5)
        n_deaths += 1
        actions = pool.worker_lost(task.worker, float(n_deaths))
        if 1 in pool.tasks:
            assert restart(pool, f"a:{n_deaths}", n_deaths + 0.5) == [(1, f"a:{n_deaths}")]
    assert n_deaths == 16
    assert failures(actions) == {1: ErrorCode.QUARANTINED}


def test_the_table_is_bounded() -> None:
    pool = dispatcher("a:0", n_slots=64)
    for n in range(40):
        for i in range(64 * n, 64 * n + 64):
            pool.submit(named(i, f"prompt {i}"), float(n))
            pool.cancel(i)
        pool.worker_lost(f"a:{n}", n + 0.5)
        restart(pool, f"a:{n + 1}", n + 0.6, n_slots=64)
    assert repr(pool.quarantine) == "<Quarantine suspects=1024>"


class Killing:
    """Two workers of eight slots under load, in virtual time; one or the other is killed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool = dispatcher("a:0", "b:0", n_slots=8)
        self.now = 0.0
        self.n_ids = 0
        self.n_deaths = 0
        self.refused: dict[int, ErrorCode] = {}
        self.reading: dict[tuple[int, int], int] = {}
        """Steps that an attempt has still to read."""

    def run(self, n_kills: int) -> None:
        """Kill at random moments until so many workers were killed."""
        next_kill = 1.0
        while n_kills and self.now < 400:
            self.turn()
            if self.now > next_kill and len(self.pool.workers) == 2:
                self.kill(self.random.choice(list(self.pool.workers)))
                n_kills -= 1
                next_kill = self.now + self.random.expovariate(1.0)

    def turn(self) -> None:
        """Let time pass: requests come, each worker does a step, dead ones come back."""
        self.now += 0.02
        while len(self.pool.tasks) < 12:
            self.pool.submit(named(self.n_ids, f"prompt {self.n_ids}"), self.now)
            self.n_ids += 1
        for worker in list(self.pool.workers.values()):
            self.step(list(worker.tasks.values()))
        self.note(self.pool.expire(self.now))
        for name in "ab":
            alive = any(worker.key[0] == name for worker in self.pool.workers.values())
            if not alive and self.random.random() < 0.05:
                self.n_deaths += 1
                restart(self.pool, f"{name}:{self.n_deaths}", self.now)

    def step(self, tasks: list[Task]) -> None:
        for sent in tasks:
            attempt = (sent.task_id, sent.attempt)
            if attempt not in self.reading:
                self.reading[attempt] = self.random.randrange(2, 25)
            self.reading[attempt] -= 1
            if self.reading[attempt] >= 0:
                continue
            key = TaskKey(*attempt)
            if self.reading[attempt] == -1:
                self.pool.started(sent.worker, started(*attempt[:1], attempt=attempt[1]), self.now)
            if sent.is_paused:
                told = PromptRead(n_read=1, is_paused=True)
                self.note(self.pool.prompt_cost(sent.worker, key, told, self.now))
                continue
            sent.answer.tokens.append(1)
            if not sent.is_trusted:
                self.pool.delta_came(sent.worker, key, self.now)
            if len(sent.answer.tokens) > 100 + sent.task_id % 50:
                self.pool.ended(sent.worker, done(*attempt), self.now)

    def note(self, actions: Sequence[Action]) -> None:
        self.refused.update(failures(actions))

    def kill(self, key: str) -> None:
        self.note(self.pool.worker_lost(key, self.now))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))]
)
def test_fifty_kills_in_a_row_under_load_refuse_no_request(seed: int) -> None:
    killing = Killing(seed)
    killing.run(50)
    assert killing.refused == {}
    assert killing.now < 400


class Poisoned(Killing):
    """As above, without a killer: one of the first requests kills its worker at some token."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.poison = self.random.randrange(12)
        self.place = self.random.randrange(40)
        self.killed: list[str] = []

    def step(self, tasks: list[Task]) -> None:
        for sent in tasks:
            left = self.reading.get((sent.task_id, sent.attempt), 1)
            writes = left <= 0 and not sent.is_paused
            if sent.task_id == self.poison and writes and len(sent.answer.tokens) >= self.place:
                self.killed.append(sent.worker)
                for other in tasks:  # the last steps are lost with the worker
                    del other.answer.tokens[-self.random.randrange(1, 3) :]
                self.kill(sent.worker)
                return
        super().step(tasks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_what_kills_at_any_token_kills_two_workers_and_nobody_else_is_refused(seed: int) -> None:
    poisoned = Poisoned(seed)
    while poisoned.now < 25:
        poisoned.turn()
    assert poisoned.refused == {poisoned.poison: ErrorCode.QUARANTINED}
    assert len(poisoned.killed) == 2
