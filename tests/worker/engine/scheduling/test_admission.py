"""Which slot a task gets, and which tasks wait."""

import pytest

from tests.worker.engines import Rig
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.scheduling.admission import most_similar
from worker.engine.slot import Slot


def test_the_slot_with_most_of_the_prompt_is_chosen() -> None:
    slots = [Slot(0, 64), Slot(1, 64, tokens=[1, 2, 3, 4]), Slot(2, 64, tokens=[1, 2])]
    assert most_similar(slots, [1, 2, 3, 5], 0.1) is slots[1]


@pytest.mark.parametrize(
    ("prompt", "similarity"), [([1, *range(50, 70)], 0.1), ([1, 2, 3], 0.0), ([], 0.1)]
)
def test_too_little_in_common_chooses_no_slot(prompt: list[int], similarity: float) -> None:
    slots = [Slot(0, 64, tokens=[1]), Slot(1, 64, tokens=[9])]
    assert most_similar(slots, prompt, similarity) is None


def test_a_prompt_that_no_slot_holds_takes_the_least_recently_used() -> None:
    rig = Rig(self_extend=SelfExtend(2, 16))
    for slot in (1, 0):
        rig.submit("an old prompt", n_predict=2, slot=slot)
        rig.finish()
    task = rig.submit("something else", n_predict=2)
    rig.finish()
    assert rig.done(task).slot == 1


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_large_task_is_not_passed_over_by_small_ones_where_cells_are_scarce(slot: int) -> None:
    rig = Rig(n_slots=3, n_cells=256)
    for i in range(2):
        rig.submit(f"s{i} " + "y" * 20, n_predict=20)
    rig.turn()
    large = rig.submit("B" * 180, slot=slot, n_predict=30)
    n_small = 0
    for _ in range(200):
        while rig.engine.n_busy + rig.engine.n_waiting < 4:
            n_small += 1
            rig.submit(f"t{n_small} " + "z" * 20, n_predict=20 + n_small % 7)
            rig.turn()
        rig.turn()
        if rig.terminals(large):
            break
    assert rig.terminals(large)
    rig.finish()


def test_a_high_limit_of_an_answer_keeps_no_other_task_out() -> None:
    rig = Rig(n_slots=4, n_cells=2048)
    tasks = [rig.submit(f"p{i}", n_predict=100_000) for i in range(4)]
    for _ in range(8):
        rig.turn()
    assert rig.engine.n_busy == 4
    for task in tasks:
        rig.cancel(task)
    rig.finish()
