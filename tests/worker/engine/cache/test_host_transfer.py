"""Copies to the host's memory and back, by steps none of which is long."""

import math
from dataclasses import dataclass, field, replace

import pytest

from protocol.wire.messages import TaskKey
from tests.worker.engines import Rig
from worker.engine.cache.host_cache import PIECE
from worker.engine.cache.host_transfer import PAUSE_S, CopyTime
from worker.engine.fake.states import FakeStates
from worker.engine.media import MediaPiece, placeholders
from worker.engine.scheduling.budget import StepBudget
from worker.engine.sequence_state import State
from worker.engine.slot import SlotState
from worker.engine.task import EngineTask, Submit

TOKEN_S = 0.0005
"""What copying a token takes here."""
AT_ONCE = {True: 400, False: 1000}
"""Tokens that fit into a step of 0.2 s while a stream runs, and of 0.5 s."""
LONG = "".join(f"{i} sheep jump over the fence. " for i in range(100))
OTHER = "".join(f"{i} goats eat the hedge. " for i in range(100))


@dataclass
class Copier:
    """An engine whose copies take time, by a clock that stands still otherwise."""

    rig: Rig
    token_s: float = TOKEN_S
    now_s: float = 0.0
    copied: list[int] = field(default_factory=list)
    """Tokens of each piece since the last turn."""
    n_put: int = 0

    def __post_init__(self) -> None:
        states = self.rig.backend.states
        copy_part, put_part = states.copy_part, states.put_part

        def slow_copy(seq: int, start: int, end: int) -> State:
            self._wait(end - start)
            return copy_part(seq, start, end)

        def slow_put(seq: int, state: State, start: int, end: int) -> bool:
            is_there = put_part(seq, state, start, end)
            if is_there:  # otherwise llama.cpp has found no cells, and copied nothing
                self._wait(end - start)
                self.n_put += end - start
            return is_there

        states.copy_part = slow_copy  # type: ignore[method-assign]
        states.put_part = slow_put  # type: ignore[method-assign]
        self.rig.engine.cache.copies.clock = lambda: self.now_s

    def _wait(self, n_tokens: int) -> None:
        self.now_s += n_tokens * self.token_s
        self.copied.append(n_tokens)

    def turn(self) -> int:
        """Do a turn; return how many tokens were copied, which fit into a step."""
        self.copied.clear()
        streams = any(slot.state is SlotState.DECODE for slot in self.rig.engine.slots)
        self.rig.turn()
        assert sum(self.copied) <= AT_ONCE[streams] or len(self.copied) == 1
        return sum(self.copied)

    def finish(self, *tasks: int) -> None:
        """Turn until these tasks have ended."""
        while not all(map(self.rig.terminals, tasks)):
            self.turn()

    def ask(self, prompt: str, n_predict: int = 8) -> int:
        """Run a task to its end; return its number."""
        task = self.rig.submit(prompt, n_predict=n_predict)
        self.finish(task)
        return task

    def begin_restore(self, prompt: str) -> int:
        """Submit a task, and stop in the middle of its restore."""
        task = self.rig.submit(prompt)
        while not self.turn() or not self.n_put:
            pass
        slot = next(s for s in self.rig.engine.slots if s.run is not None and s.run.restoring)
        assert 0 < len(slot.tokens) < len(prompt)
        return task


def moved(n_slots: int = 3) -> Copier:
    """Copy a long text to the host's memory, and let another task stream."""
    copier = Copier(Rig(n_slots=n_slots, n_ctx=8192, n_batch=512, host_bytes=1_000_000))
    copier.ask(LONG)
    copier.rig.submit("A stream", n_predict=3000)
    while copier.rig.engine.cache._is_moving or not copier.rig.engine.cache.n_host_bytes:
        copier.turn()
    assert copier.rig.engine.cache.n_cells < 200
    return copier


def alone(prompt: str) -> str:
    rig = Rig(n_slots=1, n_ctx=8192)
    task = rig.submit(prompt)
    rig.finish()
    return rig.text(task)


def test_idle_texts_move_by_steps_that_are_not_long() -> None:
    copier = Copier(Rig(n_slots=2, n_ctx=8192, n_batch=512, host_bytes=1_000_000))
    copier.ask(LONG)
    copier.rig.submit("A stream", n_predict=40)
    n_tokens, n_turns = 0, 0
    while copier.rig.engine.cache.n_cells > 200:
        n_tokens += copier.turn()
        n_turns += 1
    assert n_tokens == len(LONG) + 8
    assert n_turns >= n_tokens // AT_ONCE[True]


def test_idle_texts_take_a_tenth_of_the_steps_in_which_prompts_are_read() -> None:
    rig = Rig(n_slots=2, n_ctx=8192, n_batch=256, host_bytes=1_000_000)
    copier = Copier(rig, token_s=TOKEN_S / 10)
    copier.ask(LONG)
    task = rig.submit(OTHER, n_predict=1)
    pieces = list[int]()
    while not rig.terminals(task):
        copier.turn()
        pieces.append(len(copier.copied))
    n_in_time = int(0.1 * 0.5 / (PIECE * copier.token_s))
    assert max(pieces) == n_in_time == 3


def test_a_prompt_comes_back_by_steps_that_are_not_long() -> None:
    copier = moved()
    task = copier.begin_restore(LONG + "And then?")
    copier.finish(task)
    assert copier.rig.done(task).n_cached == len(LONG) + 1
    assert copier.n_put in (len(LONG), len(LONG) + 1), "a free slot may have the first token"
    assert copier.rig.text(task) == alone(LONG + "And then?")


def test_the_next_turn_of_a_conversation_copies_only_what_is_new() -> None:
    copier = moved()
    copier.ask(LONG + "And then?" + "y" * 100)
    copier.rig.submit(OTHER, n_predict=30)
    n_copied = 0
    while copier.rig.engine.cache.n_cells > len(OTHER) + 500:
        n_copied += copier.turn()
    assert 117 < n_copied <= 117 + PIECE


def test_whoever_is_cancelled_in_the_middle_leaves_what_has_come_back() -> None:
    copier = moved()
    task = copier.begin_restore(LONG)
    copier.rig.cancel(task)
    copier.turn()
    cells = copier.rig.backend._cells
    assert all(slot.tokens == cells.get(slot.id, []) for slot in copier.rig.engine.slots)
    again = copier.ask(LONG)
    assert copier.rig.done(again).n_cached == len(LONG)
    assert copier.rig.text(again) == alone(LONG)


def test_two_tasks_that_want_one_copy_share_what_comes_back() -> None:
    copier = moved()
    first = copier.begin_restore(LONG + "One?")
    second, third = copier.rig.submit(LONG + "Two?"), copier.rig.submit(LONG + "One?")
    copier.finish(first, second, third)
    assert copier.n_put in (len(LONG), len(LONG) + 1), "a free slot may have the first token"
    assert [copier.rig.done(task).n_cached for task in (first, second)] == [len(LONG) + 1] * 2
    assert copier.rig.text(third) == copier.rig.text(first) == alone(LONG + "One?")
    assert copier.rig.text(second) == alone(LONG + "Two?")


def test_a_copy_that_is_dropped_in_the_middle_comes_back_all_the_same() -> None:
    copier = moved()
    task = copier.begin_restore(LONG)
    copier.rig.engine.cache._host.clear()
    copier.finish(task)
    assert copier.rig.done(task).n_cached == len(LONG)
    assert copier.rig.text(task) == alone(LONG)


def test_a_text_that_is_used_again_before_all_of_it_has_moved_stays() -> None:
    copier = Copier(Rig(n_slots=2, n_ctx=8192, n_batch=512, host_bytes=1_000_000))
    copier.ask(LONG)
    copier.rig.submit("A stream", n_predict=40)
    while not copier.turn():
        pass
    again = copier.ask(LONG + "And then?")
    assert (copier.n_put, copier.rig.engine.cache.n_host_bytes) == (0, 0)
    assert copier.rig.done(again).n_cached == len(LONG) + 1


def test_a_long_text_moves_before_the_cells_are_all_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepBudget, "observe", lambda *_: None)
    copier = Copier(Rig(n_slots=3, n_cells=4000, n_batch=512, host_bytes=1_000_000))
    copier.rig.engine._step._budget.token_s = 2 * TOKEN_S
    copier.ask(LONG)
    copier.rig.submit("A stream", n_predict=200)
    copier.ask(OTHER)
    again = copier.ask(LONG)
    assert copier.rig.done(again).n_cached == len(LONG)


def test_of_a_text_that_must_go_at_once_a_beginning_is_copied() -> None:
    copier = Copier(Rig(n_slots=1, n_ctx=8192, n_batch=512, host_bytes=1_000_000))
    copier.ask(LONG)
    cache = copier.rig.engine.cache
    cache.copies.begin(left_s=2.5 * PIECE * TOKEN_S)
    assert cache.evict()
    assert (cache.n_cells, copier.copied) == (0, [PIECE] * 2)
    again = copier.ask(LONG)
    assert copier.rig.done(again).n_cached == 2 * PIECE
    assert copier.rig.text(again) == alone(LONG)


def seen(*, left_s: float) -> tuple[Copier, EngineTask]:
    """Let a text with an image leave the context, and submit it again."""
    copier = Copier(Rig(n_slots=1, n_ctx=8192, n_batch=1024, host_bytes=1_000_000))
    start, piece = PIECE - 5, MediaPiece(n_pos=2 * PIECE + 50, key="x")
    tokens = [120] * start + placeholders(piece.key, piece.n_pos) + list(LONG.encode())
    task = replace(copier.rig.task(""), prompt=tokens, media={start: piece})
    copier.rig.engine.submit(Submit(task))
    copier.finish(task.key.id)
    copier.rig.engine.cache.copies.begin(left_s)
    copier.rig.engine.cache.evict()
    copier.rig.engine.cache.copies.end()
    again = replace(task, key=TaskKey(100))
    copier.rig.engine.submit(Submit(again))
    copier.copied.clear()
    return copier, again


def test_an_image_does_not_come_back_in_part() -> None:
    copier, task = seen(left_s=math.inf)
    copier.rig.turn()
    assert copier.copied == [PIECE] * 4, "three would end in the image, and have time for no other"
    copier.finish(100)
    assert copier.rig.done(100).n_cached == len(task.prompt) - 1


def test_the_beginning_of_an_image_is_of_no_use() -> None:
    copier, task = seen(left_s=2 * PIECE * TOKEN_S)
    copier.finish(100)
    assert copier.rig.done(100).n_cached == min(task.media)


def test_what_cannot_be_copied_in_part_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStates, "can_cut", False)
    rig = Rig(n_slots=1, n_ctx=8192, n_batch=512, host_bytes=1_000_000)
    first = rig.submit(LONG)
    rig.finish()
    answer = rig.text(first)
    rig.engine.cache.evict()
    other = rig.submit(LONG + "no")
    rig.finish()
    rig.engine.cache.evict()
    following = rig.submit(LONG + answer + "And then?")
    rig.finish()
    assert rig.done(other).n_cached == len(LONG) + 1
    assert rig.text(other) == alone(LONG + "no")
    assert rig.done(following).n_cached == len(LONG) + 1
    assert rig.text(following) == alone(LONG + answer + "And then?")


def test_chats_that_take_turns_in_one_slot_come_back_behind_what_they_have_alike() -> None:
    rig = Rig(n_slots=1, n_ctx=8192, n_batch=512, host_bytes=1_000_000, is_unified=False)
    for turn in range(3):
        for name in "abc":
            task = rig.submit(LONG + name * 100 * (turn + 1))
            rig.finish()
            expected = len(LONG) + 1 + 100 * turn
            assert rig.done(task).n_cached >= expected or (turn, name) == (0, "a")


@pytest.mark.parametrize("is_unified", [True, False])
def test_a_prompt_that_loses_few_tokens_is_not_copied(*, is_unified: bool) -> None:
    """The copy would be of all of it, and nearly all of it stays in its slot."""
    rig = Rig(n_slots=1, n_ctx=8192, n_batch=512, host_bytes=1_000_000, is_unified=is_unified)
    rig.submit(LONG, n_predict=1)
    rig.finish()
    other = rig.submit(LONG[:-20] + "Or else?", n_predict=1)
    rig.finish()
    assert rig.done(other).n_cached == len(LONG) + 1 - 20
    assert rig.engine.cache.n_host_bytes == 0


def test_the_first_copy_is_taken_to_be_as_slow_as_reading() -> None:
    copies = CopyTime()
    copies.begin(left_s=0.03, read_s=1e-4)
    assert copies.has_time_for(299) and not copies.has_time_for(301)
    copies.begin(left_s=0.03)
    assert copies.has_time_for(301), "a CPU always copies faster than it reads"


def test_a_copy_that_does_not_come_back_costs_no_other_slot_its_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(n_slots=3, n_ctx=8192, n_batch=512, host_bytes=1_000_000, is_unified=False)
    for prompt, slot in ((LONG, 0), (OTHER, 0), ("Idle. " * 20, 1)):
        rig.submit(prompt, slot=slot)
        rig.finish()
    monkeypatch.setattr(rig.backend.states, "put", lambda *_: False)
    again = rig.submit(LONG, slot=2)
    rig.finish()
    assert rig.text(again) == alone(LONG)
    assert all(slot.tokens for slot in rig.engine.slots)


@pytest.mark.parametrize(("is_gpu", "is_copied"), [(True, False), (False, True)])
def test_a_cache_of_its_own_is_copied_out_of_a_gpu_only_if_the_step_has_the_time(
    monkeypatch: pytest.MonkeyPatch, *, is_gpu: bool, is_copied: bool
) -> None:
    rig = Rig(n_slots=2, n_ctx=8192, n_batch=512, host_bytes=1_000_000, is_unified=False)
    monkeypatch.setattr(rig.backend, "is_gpu", is_gpu)
    monkeypatch.setattr(StepBudget, "observe", lambda *_: None)
    rig.engine._step._budget.token_s = TOKEN_S
    copies = rig.engine.cache.copies
    rig.submit(LONG, slot=0)
    rig.finish()
    rig.submit("A stream", slot=1, n_predict=500)
    rig.turn()
    copies.token_s = 0.001  # three seconds for the long one
    rig.submit(OTHER, slot=0)
    rig.finish()
    assert bool(rig.engine.cache.n_host_bytes) == is_copied
    again = rig.submit(LONG, slot=0)
    rig.finish()
    assert rig.text(again) == alone(LONG)


def on_gpu(monkeypatch: pytest.MonkeyPatch, n_cells: int, token_s: float) -> Copier:
    """Return an engine that reads a token in `token_s`."""
    copier = Copier(Rig(n_slots=3, n_cells=n_cells, n_batch=512, host_bytes=1_000_000))
    monkeypatch.setattr(copier.rig.backend, "is_gpu", True)
    monkeypatch.setattr(StepBudget, "observe", lambda *_: None)
    copier.rig.engine._step._budget.token_s = token_s
    return copier


def test_on_a_gpu_idle_texts_stay_until_most_cells_are_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copier = on_gpu(monkeypatch, 8192, 2 * TOKEN_S)
    cache = copier.rig.engine.cache
    copier.ask(LONG)
    copier.ask(OTHER)
    assert cache.n_host_bytes == 0
    n_idle = cache.n_cells
    assert n_idle > len(LONG) + len(OTHER)
    copier.rig.submit("A stream", n_predict=6200 - n_idle)
    while not cache.n_host_bytes:
        assert cache.n_cells < 6200
        copier.turn()
    assert cache.n_cells > len(OTHER), "no more than one had to move"


def test_after_a_piece_that_takes_longer_than_reading_nothing_is_copied_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copier = on_gpu(monkeypatch, 3200, TOKEN_S / 2)
    cache = copier.rig.engine.cache
    copier.ask(LONG)
    copier.rig.submit("A stream", n_predict=100)
    assert sum(copier.turn() for _ in range(50)) == PIECE
    assert cache.n_cells > len(LONG), "it stays in the context"
    copier.now_s += PAUSE_S
    copier.rig.engine._step._budget.token_s = 2 * TOKEN_S
    copier.rig.submit("Another", n_predict=40)
    assert sum(copier.turn() for _ in range(40)) > PIECE
