"""No exception of one task ends the engine's loop: the task fails, is logged and counted."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Detokenized, Finish, TaskKey
from tests.worker.engines import Rig
from worker.engine.backend import NoTokenAllowed
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.fake.sampler import FakeSampler
from worker.engine.scheduling.preemption import running
from worker.engine.slot import Slot
from worker.engine.speculation.lookup import PromptLookup
from worker.engine.task import EngineJob, Report, Submit


def poison(rig: Rig, name: str, task_id: int) -> None:
    """Let a method of the fake backend raise what nobody expects, for one task only."""
    whole: Callable[..., Any] = getattr(rig.backend, name)

    def raising(*args: Any, **named: Any) -> Any:
        runs = [slot.run for slot in rig.engine.slots if slot.run is not None]
        samplers = [run.sampler for run in runs if run.task.key.id == task_id]
        if any(one in args for one in samplers):
            raise KeyError("a fault of ours")
        return whole(*args, **named)

    setattr(rig.backend, name, raising)


def test_a_fault_while_a_token_is_chosen_fails_that_task_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(n_slots=2)
    bad, good = rig.submit("one", n_predict=20), rig.submit("two", n_predict=20)
    rig.turn()
    poison(rig, "sample", bad)
    with caplog.at_level(logging.ERROR):
        rig.finish()
    assert rig.failed(bad).code is ErrorCode.INTERNAL
    assert rig.terminals(bad) == 1
    assert rig.done(good).finish is Finish.LIMIT
    assert rig.engine.failure is None
    assert rig.engine.counters.n_faults == 1
    assert f"task={bad}" in caplog.text
    again = rig.submit("three")
    rig.finish()
    assert rig.done(again).finish is Finish.LIMIT


@pytest.mark.parametrize("field", ["grammar", "json_schema", "tools"])
def test_a_grammar_that_cannot_be_followed_is_named_by_what_it_was_made_from(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(*_: Any) -> Any:
        message = "The grammar cannot be followed: it is too ambiguous"
        raise TaskError(ErrorCode.INVALID_REQUEST, message, param="grammar")

    rig = Rig()
    monkeypatch.setattr(rig.backend, "sample", sample)
    task = replace(rig.task("one"), grammar_field=field)
    rig.engine.submit(Submit(task))
    rig.finish()
    failed = rig.failed(task.key.id)
    assert (failed.code, failed.param) == (ErrorCode.INVALID_REQUEST, field)
    assert "cannot be followed" in failed.message


@pytest.mark.parametrize("error", [NoTokenAllowed(), TaskError(ErrorCode.INTERNAL, "no grammar")])
def test_the_time_of_a_prompt_without_a_first_token_is_counted_once(error: Exception) -> None:
    rig = Rig(n_slots=1)

    def raising(*args: Any, **named: Any) -> Any:
        raise error

    rig.backend.sample = raising  # type: ignore[method-assign]
    rig.submit("one", n_predict=20)
    start_s = time.perf_counter()
    rig.finish()
    assert 0 < rig.engine.counters.prompt_s <= time.perf_counter() - start_s


def test_a_fault_while_a_sampler_is_made_fails_that_task_only() -> None:
    rig = Rig(n_slots=1)
    whole = rig.backend.open_sampler

    def raising(params: Any, *args: Any, **named: Any) -> Any:
        if params.n_predict == 13:
            raise ZeroDivisionError
        return whole(params, *args, **named)

    rig.backend.open_sampler = raising  # type: ignore[method-assign]
    bad, good = rig.submit("one", n_predict=13), rig.submit("two")
    rig.finish()
    assert rig.failed(bad).code is ErrorCode.INTERNAL
    assert rig.done(good).finish is Finish.LIMIT
    assert rig.engine.counters.n_faults == 1


def test_a_fault_of_admission_fails_that_task_only(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(n_slots=1)
    bad, good = rig.submit("one", n_predict=13), rig.submit("two")
    whole = rig.engine.cache.cut

    def raising(slot: Slot, n_kept: int) -> int:
        if not rig.of(good):
            monkeypatch.undo()
            raise IndexError("a fault of ours")
        return whole(slot, n_kept)

    monkeypatch.setattr(rig.engine.cache, "cut", raising)
    rig.finish()
    assert rig.failed(bad).code is ErrorCode.INTERNAL
    assert rig.done(good).finish is Finish.LIMIT


def test_a_fault_while_a_slot_is_given_back_leaves_it_free() -> None:
    rig = Rig(n_slots=1)
    bad = rig.submit("one")
    rig.turn()
    sampler = rig.engine.slots[0].active.sampler
    assert isinstance(sampler, FakeSampler)
    sampler.close()  # so that the second time asserts
    rig.finish()
    assert rig.done(bad).finish is Finish.LIMIT
    good = rig.submit("two")
    rig.finish()
    assert rig.done(good).finish is Finish.LIMIT
    assert rig.engine.n_busy == 0 and rig.engine.counters.n_faults == 1


def test_a_fault_of_a_call_fails_that_call_only() -> None:
    rig = Rig(n_slots=1)

    def raising() -> Detokenized:
        raise RuntimeError("a fault of ours")

    rig.engine.submit(EngineJob(TaskKey(7), raising))
    rig.turn()
    rig.engine.submit(EngineJob(TaskKey(8), raising, is_heavy=True))
    rig.turn()
    assert [rig.failed(task_id).code for task_id in (7, 8)] == [ErrorCode.INTERNAL] * 2
    good = rig.submit("two")
    rig.finish()
    assert rig.done(good).finish is Finish.LIMIT


def test_a_fault_of_a_report_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(n_slots=1)

    def raising(_slot: Slot, **_named: bool) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Slot, "report", raising)
    rig.engine.submit(Report(TaskKey(7)))
    rig.turn()
    assert rig.failed(7).code is ErrorCode.INTERNAL


def test_a_fault_of_a_whole_step_has_one_traceback_and_a_line_for_each_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decode(_: Any) -> None:
        raise RuntimeError("a fault of ours")

    rig = Rig(n_slots=3)
    tasks = [rig.submit(text) for text in ("one", "two", "three")]
    monkeypatch.setattr(rig.backend, "decode", decode)
    rig.turn()
    assert [rig.failed(task).code for task in tasks] == [ErrorCode.INTERNAL] * 3
    told = [record for record in caplog.records if record.msg == "unexpected exception"]
    assert sorted(record.__dict__["task"] for record in told) == sorted(tasks)
    tracebacks = [record.exc_info[2] for record in told if record.exc_info]
    assert [traceback is None for traceback in tracebacks] == [False, True, True]


def test_a_fault_of_a_whole_step_fails_its_tasks_and_the_next_step_goes_on() -> None:
    rig = Rig(n_slots=2)
    first, second = rig.submit("one"), rig.submit("two")
    rig.turn()
    whole = rig.backend.decode

    def raising(rows: Any) -> None:
        rig.backend.decode = whole  # type: ignore[method-assign]
        raise MemoryError

    rig.backend.decode = raising  # type: ignore[method-assign]
    rig.turn()
    assert [rig.failed(one).code for one in (first, second)] == [ErrorCode.INTERNAL] * 2
    assert rig.engine.failure is None
    third = rig.submit("three")
    rig.finish()
    assert rig.done(third).finish is Finish.LIMIT


def test_steps_that_fail_without_end_are_a_broken_backend() -> None:
    rig = Rig(n_slots=1)

    def raising(rows: Any) -> None:
        raise MemoryError

    rig.backend.decode = raising  # type: ignore[method-assign]
    ids = [rig.submit(f"task {i}") for i in range(4)]
    rig.engine.run()
    assert rig.engine.failure is not None
    assert [rig.failed(one).code for one in ids[:2]] == [ErrorCode.INTERNAL] * 2


def test_a_broken_engine_keeps_silent_about_tasks_that_never_started() -> None:
    """The gateway gives them to another worker once this one is gone."""
    rig = Rig(n_slots=1)

    def raising(rows: Any) -> None:
        raise MemoryError

    rig.backend.decode = raising  # type: ignore[method-assign]
    ids = [rig.submit(f"task {i}") for i in range(5)]
    rig.engine.run()
    assert [rig.terminals(one) for one in ids] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("self_extend", [None, SelfExtend(n=2, width=16)])
def test_logits_that_are_not_numbers_fail_their_task_and_leave_nothing(
    self_extend: SelfExtend | None, caplog: pytest.LogCaptureFixture
) -> None:
    alone = Rig(n_slots=1)
    wanted = alone.submit("two", n_predict=20)
    alone.finish()
    rig = Rig(n_slots=3, n_cells=512, host_bytes=1 << 20, self_extend=self_extend)
    rig.submit("an earlier conversation, of which the cache keeps the text" * 3)
    rig.finish()
    good = rig.submit("two", n_predict=20)
    rig.turn()
    bad = rig.submit("one [[nan]]", n_predict=20)
    with caplog.at_level(logging.ERROR):
        while not rig.terminals(bad):
            rig.turn()
    assert "not numbers" in rig.failed(bad).message
    assert f"task={bad} " in caplog.text
    assert rig.engine.counters.n_faults == (1 if self_extend is None else 2)
    cache = rig.engine.cache
    assert cache.n_host_bytes == 0
    assert rig.backend.n_used == cache.n_cells == cache.n_held  # what is read again
    if self_extend is None:
        rig.finish()
        assert rig.text(good) == alone.text(wanted)
        assert f"task={bad} " in caplog.text
    else:  # positions that were divided cannot be read again
        assert "not numbers" in rig.failed(good).message
    assert rig.engine.failure is None


def test_whose_logits_are_no_numbers_is_found_among_many(caplog: pytest.LogCaptureFixture) -> None:
    """NaN spreads to all logits: tasks of the same step failed with the one whose fault it was."""
    prompts = ["one", "two " * 20, "one", "three" * 40]
    alone = Rig(n_slots=1)
    wanted = [alone.submit(prompt, n_predict=30) for prompt in prompts]
    alone.finish()
    rig = Rig(n_slots=6, n_cells=1024, drafter=PromptLookup(1, 4))
    first = [rig.submit(prompt, n_predict=30) for prompt in prompts[:2]]
    rig.turn()
    bad = [rig.submit(f"[[nan]] {'x' * 100}{i}", n_predict=9) for i in range(2)]
    good = first + [rig.submit(prompt, n_predict=30) for prompt in prompts[2:]]
    rig.finish()
    assert ["not numbers" in rig.failed(one).message for one in bad] == [True, True]
    assert [rig.text(one) for one in good] == [alone.text(one) for one in wanted]
    assert not rig.backend._is_spoiled


@pytest.mark.parametrize("is_unified", [True, False])
def test_a_task_fails_for_no_other_that_came_while_it_read_again(*, is_unified: bool) -> None:
    rig = Rig(n_slots=4, n_ctx=1024, n_cells=2048 * is_unified, n_batch=32, is_unified=is_unified)
    good = rig.submit("a good one " * 30, n_predict=5)
    first = rig.submit("[[nan]] x", n_predict=5)
    while not any(slot.active.is_suspect for slot in running(rig.engine.slots)):
        rig.turn()
    later = rig.submit("[[nan]] y", n_predict=5)
    other = rig.submit("another good one", n_predict=5)
    rig.finish()
    assert ["not numbers" in rig.failed(one).message for one in (first, later)] == [True, True]
    assert [rig.done(one).n_predicted for one in (good, other)] == [5, 5]


def test_nan_that_a_task_left_which_ended_is_no_fault_of_the_next() -> None:
    rig = Rig(n_slots=2, n_cells=1024)
    gone = rig.submit("[[nan]]" + "x" * 300)
    rig.turn()
    rig.cancel(gone)
    good = rig.submit("a good one", n_predict=5)
    rig.finish()
    assert rig.done(good).n_predicted == 5
