"""One prompt, read once: sharing between slots, on the fake backend."""

from collections.abc import Sequence

import pytest

from tests.worker.engines import Rig
from worker.engine.backend import BatchRow, CacheFull, DecodeFailed
from worker.engine.cache import sharing
from worker.engine.cache.checkpoints import BEFORE_END, EARLIER
from worker.engine.cache.prefix import common_prefix
from worker.engine.cache.sequences import MIN_SHARED
from worker.engine.slot import SlotState

PREFIX = "You are a careful assistant who answers in one short sentence. "


def books_agree(rig: Rig) -> bool:
    return all(slot.tokens == rig.backend._cells.get(slot.id, []) for slot in rig.engine.slots)


def test_choices_of_one_prompt_read_it_once() -> None:
    rig = Rig(n_slots=4, n_batch=32)
    tasks = [rig.submit(PREFIX, seed=i, temperature=1.0) for i in range(4)]
    rig.finish()
    alone = Rig()
    alone.submit(PREFIX, seed=2, temperature=1.0)
    alone.finish()
    n = len(PREFIX) + 1
    assert [rig.done(task).n_cached for task in tasks] == [0, n, n, n]
    assert rig.engine.heartbeat().stats.n_prompt == n
    assert rig.engine.heartbeat().stats.n_cached == 3 * n
    assert rig.text(tasks[2]) == alone.text(1)
    assert len({rig.text(task) for task in tasks}) == 4


def test_choices_start_from_the_same_step() -> None:
    rig = Rig(n_slots=4, n_batch=32)
    for i in range(4):
        rig.submit(PREFIX, seed=i, temperature=1.0)
    while not any(slot.state is SlotState.DECODE for slot in rig.engine.slots):
        rig.turn()
    assert all(slot.state is SlotState.DECODE for slot in rig.engine.slots)


def test_tasks_with_one_beginning_read_it_once() -> None:
    rig = Rig(n_slots=8, n_batch=32)
    tasks = [rig.submit(f"{PREFIX}{i}{'!' * i}") for i in range(8)]
    while rig.engine.n_busy or not rig.emitted:
        rig.turn()
        assert books_agree(rig)
    assert rig.done(tasks[0]).n_cached == 0
    assert all(rig.done(task).n_cached >= len(PREFIX) - 1 for task in tasks[1:])
    for i in (0, 3, 7):
        alone = Rig()
        alone.submit(f"{PREFIX}{i}{'!' * i}")
        alone.finish()
        assert rig.text(tasks[i]) == alone.text(1)


@pytest.mark.parametrize("tail", ["", " and {}"])
def test_while_one_prompt_is_read_those_that_wait_for_it_are_not_compared_with_it_again(
    tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 that waited for 20,000 tokens took 20 ms of each step."""
    rig = Rig(n_slots=8, n_ctx=1024, n_batch=16)
    n_compared = 0

    def counted(a: Sequence[int], b: Sequence[int]) -> int:
        nonlocal n_compared
        n_compared += 1
        return common_prefix(a, b)

    monkeypatch.setattr(sharing, "common_prefix", counted)
    tasks = [rig.submit(10 * PREFIX + tail.format(i)) for i in range(8)]
    rig.turn()
    assert n_compared >= 7
    while rig.engine.slots[0].n_prompt_left > 64:
        before = n_compared
        rig.turn()
        assert n_compared == before
    rig.finish()
    assert all(rig.done(task).n_cached > 10 * len(PREFIX) - MIN_SHARED for task in tasks[1:])


def test_a_prompt_is_taken_from_a_slot_that_is_busy_generating() -> None:
    rig = Rig(n_slots=2)
    first = rig.submit(PREFIX, n_predict=100)
    while not rig.text(first):
        rig.turn()
    second = rig.submit(PREFIX + "And why?")
    rig.finish()
    assert rig.done(second).n_cached == len(PREFIX) + 1


def test_a_prompt_is_taken_from_an_idle_slot_although_another_was_asked_for() -> None:
    rig = Rig(n_slots=2)
    rig.submit(PREFIX, slot=0)
    rig.finish()
    second = rig.submit(PREFIX + "And why?", slot=1)
    rig.finish()
    assert rig.done(second).n_cached == len(PREFIX) + 1


def test_even_a_short_prompt_is_read_once_for_all_its_choices() -> None:
    rig = Rig(n_slots=3)
    tasks = [rig.submit("ab", seed=i, temperature=1.0) for i in range(3)]
    rig.finish()
    assert [rig.done(task).n_cached for task in tasks] == [0, 3, 3]


def test_short_beginnings_are_not_worth_sharing() -> None:
    rig = Rig(n_slots=2)
    tasks = [rig.submit("a" * (MIN_SHARED - 2) + end) for end in ("xyz", "uvw")]
    rig.finish()
    assert [rig.done(task).n_cached for task in tasks] == [0, 0]


def test_without_cache_prompt_nothing_is_shared() -> None:
    rig = Rig(n_slots=2)
    tasks = [rig.submit(PREFIX, cache_prompt=False) for _ in range(2)]
    rig.finish()
    assert [rig.done(task).n_cached for task in tasks] == [0, 0]


def test_who_waits_for_a_cancelled_task_reads_on_from_where_it_came_to() -> None:
    rig = Rig(n_slots=2, n_batch=32, n_ctx=512)
    first = rig.submit(PREFIX * 4)
    second = rig.submit(PREFIX * 4 + "?")
    rig.turn()
    rig.turn()
    rig.cancel(first)
    rig.finish()
    assert 16 <= rig.done(second).n_cached < 4 * len(PREFIX)
    assert books_agree(rig)


def test_who_waits_for_a_failed_task_reads_by_itself() -> None:
    rig = Rig(n_slots=2, n_batch=32)
    tasks = [rig.submit(PREFIX * 2, n_predict=5) for _ in range(2)]
    rig.turn()
    decode = rig.backend.decode

    def fail_once(rows: Sequence[BatchRow]) -> None:
        rig.backend.decode = decode  # type: ignore[method-assign]
        raise DecodeFailed("out of luck", fatal=False)

    rig.backend.decode = fail_once  # type: ignore[method-assign]
    rig.finish()
    assert rig.failed(tasks[0]).message == "out of luck"
    assert rig.done(tasks[1]).n_predicted == 5


def test_a_shared_context_is_shifted_only_after_it_has_cells_of_its_own() -> None:
    rig = Rig(n_slots=2, n_ctx=96, context_shift=True)
    long = PREFIX + "x" * 25
    tasks = [rig.submit(long + end, n_predict=200) for end in "ab"]
    shifted: list[int] = []
    shift, put = rig.backend.shift, rig.backend.states.put
    own: set[int] = set()

    def checked_shift(seq: int, start: int, end: int) -> None:
        assert seq in own or end >= len(long), "moves cells that another slot holds"
        shifted.append(seq)
        shift(seq, start, end)

    def noted_put(seq: int, state: bytes, n_tokens: int) -> bool:
        own.add(seq)
        return put(seq, state, n_tokens)

    rig.backend.shift = checked_shift  # type: ignore[method-assign]
    rig.backend.states.put = noted_put  # type: ignore[method-assign, assignment]
    while rig.engine.n_busy or not rig.emitted:
        rig.turn()
        assert books_agree(rig)
    assert own == {0, 1} == set(shifted)
    assert [rig.done(task).n_predicted for task in tasks] == [200, 200]


def test_a_long_text_is_not_copied_for_its_short_beginning() -> None:
    rig = Rig(n_slots=2, n_ctx=6400, n_batch=512, is_unified=False, needs_checkpoints=True)
    rig.submit("x" * 40 + "a", n_predict=1)
    rig.finish()
    rig.submit("x" * 40 + "y" * 1600, n_predict=1, slot=0)
    rig.finish()
    short, long = (rig.submit("x" * 40 + "y" * n + "b", slot=1) for n in (0, 1300))
    rig.finish()
    last = 1641 - BEFORE_END - EARLIER  # where the long text has a checkpoint
    assert [rig.done(task).n_cached for task in (short, long)] == [0, last]


@pytest.mark.parametrize("n_more", [1, 50])
def test_a_shared_context_that_cannot_be_shifted_ends_its_task_once(
    monkeypatch: pytest.MonkeyPatch, n_more: int
) -> None:
    rig = Rig(n_slots=2, n_ctx=96, context_shift=True)
    monkeypatch.setattr(rig.backend.states, "put", lambda _seq, _state, _n_pos: False)
    long = PREFIX + "x" * 25
    n_until_full = 96 - len(long + "a") - 1
    tasks = [rig.submit(long + end, n_predict=n_until_full + n_more) for end in "ab"]
    rig.finish()
    for task in tasks:
        assert "share what a shift would drop" in rig.failed(task).message
        assert rig.terminals(task) == 1
    assert rig.engine.failure is None and books_agree(rig)
    again = rig.submit("once more", n_predict=1)
    rig.finish()
    assert rig.done(again).n_predicted == 1


def test_a_task_that_gave_way_while_it_waited_for_a_prompt_goes_on() -> None:
    rig = Rig(n_slots=3, n_batch=32)
    first = rig.submit(PREFIX, slot=0)
    between = rig.submit("something else", slot=1, n_predict=100)
    second = rig.submit(PREFIX, slot=2)
    decode, slots = rig.backend.decode, rig.engine.slots

    def full_until_both_gave_way(rows: Sequence[BatchRow]) -> None:
        is_last = any(row.seq == 0 and row.wants_logits for row in rows)
        if is_last and not slots[1].active.is_preempted:
            raise CacheFull
        decode(rows)

    rig.backend.decode = full_until_both_gave_way  # type: ignore[method-assign]
    while not slots[1].run or not slots[1].run.is_preempted:
        rig.turn()
    assert slots[2].active.is_preempted
    rig.backend.decode = decode  # type: ignore[method-assign]
    rig.cancel(between)
    rig.finish()
    assert rig.text(first) == rig.text(second) != ""


def test_a_cache_is_not_copied_for_a_short_prompt() -> None:
    rig = Rig(n_slots=2, n_ctx=12800, n_batch=512, is_unified=False)
    short, long = "x" * 50, "y" * 200
    for prompt, n_cached in ((short, 0), (long, len(long) + 1)):
        tasks = [rig.submit(prompt) for _ in range(2)]
        rig.finish()
        assert rig.done(tasks[1]).n_cached == n_cached
        assert len({rig.text(task) for task in tasks}) == 1
