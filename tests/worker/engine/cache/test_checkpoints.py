"""Where checkpoints are made, which are dropped, and what they are used for."""

from typing import Any

import pytest

from tests.worker.engines import Rig
from worker.engine.cache import checkpoints
from worker.engine.cache.checkpoints import BEFORE_END
from worker.engine.cache.sequences import MIN_SHARED
from worker.engine.fake.backend import BOS, FakeBackend
from worker.engine.scheduling.budget import StepBudget
from worker.engine.sequence_state import Checkpoint, State
from worker.engine.slot import Slot

RULES = "You are a machine that knows all about trains and their stations. "
ANNA, BERT, CARA = (RULES + end for end in ("And where is A?", "Does B lie by the sea?", "Hm?"))


def rig_of(n_slots: int = 2, **settings: Any) -> Rig:
    return Rig(n_slots=n_slots, n_ctx=1024, n_batch=512, needs_checkpoints=True, **settings)


def places(slot: Slot) -> list[int]:
    return [each.n for each in slot.checkpoints]


def alone(prompt: str) -> str:
    rig = Rig(n_slots=1, n_ctx=1024)
    task = rig.submit(prompt)
    rig.finish()
    return rig.text(task)


def asked(rig: Rig, prompt: str, **settings: Any) -> int:
    """Ask, compare the text, and return how many tokens were cached."""
    task = rig.submit(prompt, **settings)
    rig.finish()
    assert rig.text(task) == alone(prompt)
    return rig.done(task).n_cached


def test_a_prompt_has_one_before_its_end_and_one_where_it_parts_from_another() -> None:
    rig = rig_of()
    assert asked(rig, ANNA, slot=0) == 0
    assert places(rig.engine.slots[0]) == [len(ANNA) + 1 - BEFORE_END]
    assert asked(rig, BERT, slot=1) == 0
    assert places(rig.engine.slots[1]) == [len(RULES) + 1, len(BERT) + 1 - BEFORE_END]
    assert asked(rig, CARA, slot=0) == len(RULES) + 1, "shared by the other slot"
    assert places(rig.engine.slots[0])[0] == len(RULES) + 1


def test_a_long_prompt_has_one_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EARLIER", 30)
    rig = rig_of()
    asked(rig, ANNA)
    n_last = len(ANNA) + 1 - BEFORE_END
    assert places(rig.engine.slots[0]) == [n_last - 30, n_last]
    assert asked(rig, BERT, slot=0) == n_last - 30


def test_near_its_end_a_window_is_cut_without_a_checkpoint() -> None:
    rig = rig_of(1, window=40, n_checkpoints=0)
    assert asked(rig, ANNA) == 0
    n = len(ANNA) + 1 - 20
    edited = ANNA[:-20] + "Where then?"
    assert asked(rig, edited) == n
    assert asked(rig, edited) == len(edited), "all but one"
    assert asked(rig, RULES[:30] + "Hm?") == 0, "too far back"


def test_a_task_gets_the_slot_whose_window_can_be_cut() -> None:
    rig = rig_of(3, window=40, n_checkpoints=0)
    asked(rig, ANNA, slot=1)
    assert asked(rig, ANNA[:-20] + "Where then?") == len(ANNA) + 1 - 20
    assert not rig.engine.slots[0].tokens


def test_a_checkpoint_is_made_where_a_window_is_cut() -> None:
    """So that the next prompt that parts there can take it from another slot."""
    rig = rig_of(2, window=40)
    asked(rig, ANNA, slot=0)
    n = len(ANNA) + 1 - 15
    assert asked(rig, BERT, slot=0) == len(RULES) + 1 == n
    assert places(rig.engine.slots[0]) == [n, len(BERT) + 1 - BEFORE_END]
    assert asked(rig, CARA, slot=1) == n


def test_a_message_begins_with_its_control_token() -> None:
    """Two that begin with one word do not part behind it."""
    rig = rig_of(n_slots=1)
    rules = rig.backend.tokenize(RULES, add_special=True, parse_special=True)
    for message in (b"user: What is it?", b"user: Why is it?"):
        task = rig.task("")
        task.prompt[:] = [*rules, BOS, *message]
        rig.engine.tasks.add(task)
        rig.engine.tasks.admit(rig.engine.progress)
        rig.finish()
    assert len(rules) + 1 in places(rig.engine.slots[0])


def test_tasks_that_come_at_once_read_what_they_have_alike_once() -> None:
    rig = rig_of(n_slots=3)
    tasks = [rig.submit(prompt) for prompt in (ANNA, BERT, CARA)]
    rig.finish()
    first, *others = (rig.done(task).n_cached for task in tasks)
    assert first == 0 and all(len(RULES) - MIN_SHARED < n <= len(RULES) + 1 for n in others)
    assert [rig.text(task) for task in tasks] == [alone(prompt) for prompt in (ANNA, BERT, CARA)]


def test_a_task_that_leaves_nothing_makes_none() -> None:
    rig = rig_of()
    asked(rig, ANNA, cache_prompt=False)
    assert not any(slot.checkpoints for slot in rig.engine.slots)


def test_of_too_many_the_one_between_near_neighbours_goes() -> None:
    rig = rig_of(n_slots=1, n_checkpoints=3)
    text = RULES
    for _ in range(6):
        asked(rig, text)
        text += "Yes. "
    found = places(rig.engine.slots[0])
    assert len(found) == 3
    assert found[0] == len(RULES) + 1 - BEFORE_END, "that of the rules stays"
    assert found[-1] == len(text) - len("Yes. ") + 1 - BEFORE_END


def test_their_bytes_are_bounded_and_those_of_idle_slots_go_first() -> None:
    n_bytes = 4 * (len(ANNA) + 1 - BEFORE_END) + 4
    rig = rig_of(host_bytes=2 * n_bytes)
    asked(rig, ANNA, slot=0)
    asked(rig, "x" * len(ANNA), slot=1)
    assert rig.engine.cache.checkpoints.n_bytes == 2 * n_bytes
    asked(rig, "x" * len(ANNA) + "yyyyyyyy", slot=1)
    assert not rig.engine.slots[0].checkpoints
    assert len(rig.engine.slots[1].checkpoints) == 1


@pytest.mark.parametrize(("end", "n_copies"), [("No?", 0), ("No? " * 80, 0)])
def test_a_text_of_which_most_stays_is_not_copied(end: str, n_copies: int) -> None:
    rig = rig_of(n_slots=1, host_bytes=1_000_000)
    asked(rig, ANNA)
    asked(rig, ANNA + end)
    assert len(rig.engine.cache._host) == n_copies


def test_a_text_of_which_little_stays_comes_back_from_ram() -> None:
    rig = rig_of(n_slots=1, host_bytes=1_000_000)
    asked(rig, ANNA)
    asked(rig, "Something else, which is long enough to be kept in the host's memory as well.")
    assert asked(rig, ANNA) == len(ANNA) + 1 - BEFORE_END


def test_a_prompt_that_is_read_twice_has_its_checkpoints_again() -> None:
    rig = rig_of(n_slots=1)
    task = rig.submit(ANNA, n_predict=20)
    while not rig.text(task):
        rig.turn()
    (slot,) = rig.engine.slots
    rig.engine._step._preemption.preempt(slot)
    assert not slot.checkpoints
    rig.finish()
    assert places(slot) == [len(ANNA) + 1 - BEFORE_END]


def test_slots_that_cannot_share_read_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBackend, "can_copy", False)
    rig = rig_of()
    tasks = [rig.submit(prompt) for prompt in (ANNA, ANNA)]
    rig.finish()
    assert [rig.done(task).n_cached for task in tasks] == [0, 0]
    assert [rig.text(task) for task in tasks] == [alone(ANNA)] * 2
    assert asked(rig, BERT, slot=0) == 0
    assert asked(rig, CARA, slot=0) == len(RULES) + 1, "of its own"


class SlowCopies:
    """A rig whose slot 0 streams, and in which a checkpoint takes a part of a step to copy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float, n_slots: int = 2) -> None:
        self.rig = rig_of(n_slots, n_cells=4096)
        self.now_s = 0.0
        self.n_put = 0
        self.made: list[int] = []
        """Slots of which a checkpoint was made."""
        budget, states = self.rig.engine._step._budget, self.rig.backend.states
        self.took_s = share * budget.target_s
        self._copy, self._go_back = states.checkpoint, states.go_back
        monkeypatch.setattr(StepBudget, "observe", lambda *_: None)
        monkeypatch.setattr(self.rig.engine.cache.copies, "clock", lambda: self.now_s)
        monkeypatch.setattr(states, "checkpoint", self._checkpoint)
        monkeypatch.setattr(states, "go_back", self._put)
        self.rig.submit("A stream", slot=0, n_predict=500)
        self.rig.turn()
        budget.token_s = budget.target_s / 60

    def _checkpoint(self, seq: int) -> State:
        self.now_s += self.took_s
        self.made.append(seq)
        return self._copy(seq)

    def _put(self, seq: int, checkpoint: Checkpoint) -> bool:
        self.now_s += self.took_s
        self.n_put += 1
        return self._go_back(seq, checkpoint)


def test_a_step_that_makes_a_checkpoint_reads_the_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a stream waits for both: a window of Gemma 3 takes as long to copy as a step."""
    monkeypatch.setattr(checkpoints, "EARLIER", 300)
    rig = SlowCopies(monkeypatch, share=0.5).rig
    rig.submit("a" * 500, slot=1)
    slot, read = rig.engine.slots[1], [0]
    while not slot.checkpoints:
        rig.turn()
        read.append(len(slot.tokens))
    (place,) = places(slot)
    assert read[-3:] == [place - place % 60, place, place + 30]
    rig.finish()


def test_tasks_that_copy_a_checkpoint_begin_in_one_step_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowCopies(monkeypatch, share=0.9, n_slots=5)
    rig = slow.rig
    first = rig.submit(ANNA, slot=1)
    while not rig.terminals(first):
        rig.turn()
    tasks = [rig.submit(f"{ANNA} {end}", slot=2 + i) for i, end in enumerate("abc")]
    for n in (1, 2, 3):
        rig.turn()
        assert slow.n_put == n
    rig.finish()
    assert [rig.done(task).n_cached > len(RULES) for task in tasks] == [True] * 3
    assert [rig.text(task) for task in tasks] == [alone(f"{ANNA} {end}") for end in "abc"]


def test_tasks_without_a_prefix_wait_for_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SlowCopies(monkeypatch, share=0.1, n_slots=5).rig
    rig.engine.cache.copies.checkpoint_s = 10 * rig.engine._step._budget.target_s
    for i, prompt in enumerate((ANNA, "Quite another one", "And a third one"), 1):
        rig.submit(prompt, slot=i)
    rig.turn()
    assert not any(rig.engine.slots[i].active.awaits_prefix for i in (1, 2, 3))
    rig.finish()


def test_a_checkpoint_made_for_a_task_is_there_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowCopies(monkeypatch, share=0.1, n_slots=4)
    rig = slow.rig
    leader = rig.submit(ANNA, slot=1, n_predict=100)
    rig.finish()
    prompts = [ANNA + rig.text(leader) + end for end in "ab"]
    for slot, prompt in enumerate(prompts, 2):
        assert asked(rig, prompt, slot=slot) == len(rig.engine.slots[1].tokens)
    assert slow.made.count(1) == 2, "before the end of its prompt, and at its own end"
