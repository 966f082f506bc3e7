"""The step loop over the fake backend."""

from typing import Any

import pytest

from protocol.errors import ErrorCode, InvalidRequest
from protocol.wire.messages import (
    Delta,
    Detokenized,
    Finish,
    Inspected,
    Progress,
    TaskKey,
)
from tests.envelopes import payloads
from tests.worker.engines import Rig
from worker.engine.fake.sampler import FakeSampler
from worker.engine.task import AbortAll, EngineJob, Report, Stop


def test_text_is_the_same_alone_and_among_others() -> None:
    alone = Rig(n_slots=1)
    prompts = [f"prompt number {i}" for i in range(4)]
    expected = []
    for prompt in prompts:
        task_id = alone.submit(prompt, cache_prompt=False)
        alone.finish()
        expected.append(alone.text(task_id))
    together = Rig(n_slots=4)
    ids = [together.submit(prompt) for prompt in prompts]
    together.finish()
    assert [together.text(task_id) for task_id in ids] == expected


def test_each_task_starts_once_and_ends_once() -> None:
    rig = Rig(n_slots=2)
    ids = [rig.submit(f"task {i}") for i in range(5)]
    rig.finish()
    for task_id in ids:
        assert rig.started(task_id).n_prompt == len("task 0") + 1
        assert rig.terminals(task_id) == 1
        assert rig.done(task_id).finish is Finish.LIMIT
        assert rig.done(task_id).n_predicted == 8


def test_a_step_emits_all_slots_at_once() -> None:
    rig = Rig(n_slots=3)
    for i in range(3):
        rig.submit(f"task {i}", n_predict=4)
    rig.finish()
    widest = max(len(payloads(step, Delta)) for step in rig.steps)
    assert widest == 3


def test_cancel_ends_a_running_task_within_one_turn() -> None:
    rig = Rig(n_slots=1)
    task_id = rig.submit("endless", n_predict=-1)
    rig.turn()
    rig.turn()
    rig.cancel(task_id)
    rig.submit("next")
    rig.turn()
    assert rig.done(task_id).finish is Finish.CANCELLED
    assert rig.terminals(task_id) == 1


def test_cancel_ends_a_waiting_task() -> None:
    rig = Rig(n_slots=1)
    first = rig.submit("first")
    second = rig.submit("second")
    rig.turn()
    rig.cancel(second)
    rig.finish()
    assert rig.done(first).finish is Finish.LIMIT
    assert rig.done(second).finish is Finish.CANCELLED


def test_cancel_of_an_unknown_task_is_ignored() -> None:
    rig = Rig()
    rig.cancel(999)
    task_id = rig.submit("hello")
    rig.finish()
    assert rig.terminals(task_id) == 1


def test_a_slot_reuses_the_common_prefix_of_its_cache() -> None:
    rig = Rig(n_slots=1)
    rig.submit("a long common beginning, then this")
    rig.finish()
    second = rig.submit("a long common beginning, then that")
    rig.finish()
    assert rig.started(second).n_cached == len("a long common beginning, then th") + 1
    assert rig.done(second).timings.prompt_n == 2


def test_the_last_prompt_token_is_always_read_again() -> None:
    rig = Rig(n_slots=1)
    first = rig.submit("the same")
    rig.finish()
    second = rig.submit("the same")
    rig.finish()
    assert rig.started(second).n_cached == len("the same")
    assert rig.text(first) == rig.text(second)


def test_cache_prompt_false_reads_everything() -> None:
    rig = Rig(n_slots=1)
    rig.submit("the same")
    rig.finish()
    second = rig.submit("the same", cache_prompt=False)
    rig.finish()
    assert rig.started(second).n_cached == 0


def test_a_task_goes_to_the_slot_that_knows_its_prompt() -> None:
    rig = Rig(n_slots=2)
    first = rig.submit("about cats and other animals")
    second = rig.submit("quite another matter altogether")
    rig.finish()
    again = rig.submit("quite another matter entirely")
    rig.finish()
    assert rig.started(again).slot == rig.started(second).slot
    assert rig.started(first).slot != rig.started(second).slot


def test_id_slot_waits_for_its_slot() -> None:
    rig = Rig(n_slots=2)
    running = rig.submit("first", slot=1, n_predict=20)
    rig.turn()
    waiting = rig.submit("second", slot=1)
    passing = rig.submit("third")
    rig.finish()
    assert rig.started(running).slot == rig.started(waiting).slot == 1
    assert rig.started(passing).slot == 0


def test_decoding_goes_on_while_a_long_prompt_is_read() -> None:
    rig = Rig(n_slots=2, n_ctx=2048, n_batch=64)
    talking = rig.submit("short", n_predict=30)
    rig.turn()
    reading = rig.submit("x" * 1000)
    rig.finish()
    order = [one.task.id for one in rig.envelopes if isinstance(one.payload, Delta)]
    assert order.index(reading) > 10
    assert set(order[: order.index(reading)]) == {talking}


def test_zero_tokens_reads_the_prompt_into_the_cache() -> None:
    rig = Rig(n_slots=1)
    first = rig.submit("warm this up please", n_predict=0)
    rig.finish()
    assert rig.done(first).n_predicted == 0
    assert rig.done(first).finish is Finish.LIMIT
    assert rig.text(first) == ""
    second = rig.submit("warm this up please")
    rig.finish()
    assert rig.started(second).n_cached == len("warm this up please")


def test_end_of_generation_is_counted_but_not_shown() -> None:
    rig = Rig()
    task_id = rig.submit("[[say hi]]", n_predict=-1)
    rig.finish()
    assert rig.text(task_id) == "hi"
    assert rig.done(task_id).finish is Finish.EOS
    assert rig.done(task_id).n_predicted == 3


def test_stop_string_across_tokens_is_cut_out() -> None:
    rig = Rig()
    task_id = rig.submit("[[say one END two]]", n_predict=-1, stop=["END"])
    rig.finish()
    assert rig.text(task_id) == "one "
    assert rig.done(task_id).stopping_word == "END"
    assert rig.done(task_id).stops == ("END",)
    assert rig.done(task_id).finish is Finish.WORD


def test_a_full_context_ends_the_text_truncated() -> None:
    rig = Rig(n_slots=1, n_ctx=32)
    task_id = rig.submit("0123456789", n_predict=-1)
    rig.finish()
    done = rig.done(task_id)
    assert (done.finish, done.truncated) == (Finish.LIMIT, True)
    assert done.n_prompt + done.n_predicted == 32


def test_context_shift_goes_on_past_the_context() -> None:
    rig = Rig(n_slots=1, n_ctx=32, context_shift=True)
    task_id = rig.submit("0123456789", n_predict=100, n_keep=4)
    rig.finish()
    done = rig.done(task_id)
    assert (done.n_predicted, done.truncated, done.finish) == (100, True, Finish.LIMIT)
    assert done.n_past < 32


@pytest.mark.parametrize(
    ("params", "start", "n"),
    [
        ({"n_keep": 4}, 5, 13),
        ({"n_keep": 0}, 1, 15),
        ({"n_keep": -1}, 12, 9),
        ({"n_keep": 4, "n_discard": 3}, 5, 3),
        ({"n_keep": 4, "n_discard": 1000}, 5, 25),
    ],
    ids=str,
)
def test_a_shift_keeps_and_discards_as_many_as_asked(
    params: dict[str, Any], start: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(n_slots=1, n_ctx=32, context_shift=True)
    shifts: list[tuple[int, int]] = []
    shift = rig.backend.shift

    def watched(seq: int, first: int, end: int) -> None:
        shifts.append((first, end - first))
        shift(seq, first, end)

    monkeypatch.setattr(rig.backend, "shift", watched)
    rig.submit("0123456789", n_predict=40, **params)
    rig.finish()
    assert shifts[0] == (start, n)  # BOS is kept too
    assert len(set(shifts)) == 1


def test_endless_generation_is_guarded_when_shifting() -> None:
    rig = Rig(n_slots=1, n_ctx=32, context_shift=True)
    task_id = rig.submit("0123456789", n_predict=-1)
    rig.finish()
    assert rig.done(task_id).truncated


def test_a_failed_decode_fails_its_tasks_and_no_others() -> None:
    rig = Rig(n_slots=2)
    bad = rig.submit("[[fail]]")
    rig.turn()
    good = rig.submit("good")
    rig.finish()
    assert rig.failed(bad).code is ErrorCode.INTERNAL
    assert rig.done(good).n_predicted == 8


def test_an_empty_prompt_is_answered_with_nothing() -> None:
    rig = Rig()
    task = rig.task("")
    task.prompt.clear()
    from worker.engine.task import Submit

    rig.engine.submit(Submit(task))
    other = rig.submit("other")
    rig.finish()
    assert rig.done(task.key.id).finish is Finish.NONE
    assert rig.terminals(other) == 1


def test_progress_is_told_on_request_from_cached_to_total() -> None:
    rig = Rig(n_slots=1, n_ctx=1024)
    task_id = rig.submit("y" * 300, return_progress=True)
    rig.finish()
    told = [m for m in rig.of(task_id) if isinstance(m, Progress)]
    assert told[0].time_ms == 0.0 < told[-1].time_ms, "nothing was computed before the first"
    steps = [m.processed for m in told]
    assert steps[0] == 0
    assert steps[-1] == 301
    assert steps == sorted(steps)


def test_timings_come_with_each_token_on_request() -> None:
    rig = Rig()
    task_id = rig.submit("hello", timings_per_token=True)
    rig.finish()
    assert all(m.timings for m in rig.of(task_id) if isinstance(m, Delta))


def test_report_describes_idle_and_busy_slots() -> None:
    rig = Rig(n_slots=2)
    rig.submit("hello", n_predict=50)
    rig.turn()
    rig.engine.submit(Report(TaskKey(77)))
    rig.turn()
    report = next(m for m in rig.emitted if isinstance(m, Inspected))
    assert [slot.is_processing for slot in report.slots] == [True, False]
    assert report.slots[0].params is not None
    assert report.slots[1].params is None


def test_a_call_runs_between_steps_and_sends_what_it_returns() -> None:
    rig = Rig(n_slots=1)
    rig.submit("hello", n_predict=50)
    rig.turn()
    answer = Detokenized(content="done")
    rig.engine.submit(EngineJob(TaskKey(5), lambda: answer))
    rig.turn()
    assert rig.of(5) == [answer]


def test_a_call_that_fails_is_answered_with_the_reason() -> None:
    rig = Rig(n_slots=1)

    def work() -> None:
        raise InvalidRequest("no such file", param="filename")

    rig.engine.submit(EngineJob(TaskKey(6), work))
    rig.turn()
    assert rig.failed(6).param == "filename"


def test_abort_all_frees_every_slot_without_a_word() -> None:
    rig = Rig(n_slots=2)
    ids = [rig.submit(f"task {i}", n_predict=-1) for i in range(3)]
    rig.turn()
    rig.engine.submit(AbortAll(0))
    later = rig.submit("later")
    rig.finish()
    assert [rig.terminals(task_id) for task_id in ids] == [0, 0, 0]
    assert rig.terminals(later) == 1


def test_stopping_fails_what_is_left() -> None:
    rig = Rig(n_slots=1)
    ids = [rig.submit(f"task {i}", n_predict=-1) for i in range(2)]
    rig.turn()
    rig.engine.submit(Stop())
    rig.engine.run()
    assert [rig.failed(task_id).code for task_id in ids] == [ErrorCode.INTERNAL] * 2


def test_samplers_are_all_freed() -> None:
    before = FakeSampler.open_count
    rig = Rig(n_slots=2)
    for i in range(4):
        rig.submit(f"task {i}")
    rig.cancel(2)
    rig.finish()
    assert FakeSampler.open_count == before


def test_counters_add_up() -> None:
    rig = Rig(n_slots=1)
    rig.submit("abc", n_predict=5)
    rig.finish()
    stats = rig.engine.heartbeat().stats
    assert (stats.n_prompt, stats.n_predicted, stats.n_cached) == (4, 5, 0)
    assert stats.n_decode == 5
    assert stats.n_tokens_max == 8
    assert stats.n_kv_used == 8


@pytest.mark.parametrize("n_slots", [1, 3])
def test_repr_tells_the_state(n_slots: int) -> None:
    rig = Rig(n_slots=n_slots)
    rig.submit("hello")
    rig.turn()
    assert repr(rig.engine) == f"<Engine busy=1/{n_slots} waiting=0>"
    assert repr(rig.engine.slots[0]).startswith("<Slot 0 DECODE task=1")
