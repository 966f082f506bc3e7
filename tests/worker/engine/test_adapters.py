"""LoRA adapters over the fake backend: sets do not mix, none starves, caches are kept apart."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from tests.worker.engines import Rig
from worker.engine.adapters import (
    AdapterRotation,
    AdapterTask,
    Scales,
    check_scales,
    choose_scales,
)

ON: list[dict[str, Any]] = [{"id": 0, "scale": 1.0}]
OFF: list[dict[str, Any]] = [{"id": 0, "scale": 0.0}]


def test_a_task_has_its_own_scales_or_the_standing_ones() -> None:
    assert choose_scales(None, (0.5, 1.0)) == (0.5, 1.0)
    assert choose_scales((), (0.5, 1.0)) == (0.5, 1.0)
    assert choose_scales(((1, 0.25),), (0.5, 1.0)) == (0.0, 0.25)


def test_an_adapter_that_is_not_loaded_is_named() -> None:
    check_scales([(1, 0.5)], 2)
    with pytest.raises(InvalidRequest, match="no adapter has the id 2; 0 to 1 are loaded"):
        check_scales([(2, 0.5)], 2)
    with pytest.raises(InvalidRequest, match="none is loaded"):
        check_scales([(0, 0.5)], 0)


SETS = st.integers(0, 3).map(lambda number: (float(number),))


def longest_wait(steps: list[list[tuple[Scales, str]]]) -> int:
    """Return for how many batches in a row a set has waited at most."""
    rotation, waited, longest = AdapterRotation(), Counter[Scales](), 0
    for step in steps:
        tasks = [AdapterTask(scales, order, who) for order, (scales, who) in enumerate(step)]
        chosen = rotation.choose(tasks)
        waited = Counter({one: waited[one] + 1 for one, _ in step if one != chosen})
        longest = max(longest, *waited.values(), 0)
    return longest


@given(st.lists(st.lists(st.tuples(SETS, st.just("")), min_size=1, max_size=8), max_size=40))
def test_no_set_of_a_tenant_waits_longer_than_there_are_others(
    steps: list[list[tuple[Scales, str]]],
) -> None:
    assert longest_wait(steps) < 4


@given(
    st.lists(st.lists(st.tuples(SETS, st.sampled_from("abc")), min_size=1, max_size=8), max_size=60)
)
def test_no_set_waits_longer_than_three_times_as_many_batches_as_there_are_sets(
    steps: list[list[tuple[Scales, str]]],
) -> None:
    assert longest_wait(steps) < 3 * 4


def test_a_tenant_has_no_more_batches_for_having_more_sets() -> None:
    many = [AdapterTask((float(n),), n, "many") for n in range(7)]
    one = AdapterTask((9.0,), 9, "one")
    for beside in ([], [AdapterTask((0.0,), 10, "one")]):  # the second set is the others', too
        rotation = AdapterRotation()
        chosen = Counter(rotation.choose([*many, one, *beside]) for _ in range(800))
        own = chosen[one.scales] + (chosen[(0.0,)] if beside else 0)
        assert own >= 400
        assert min(chosen.values()) > 800 // (3 * 8)


def test_the_oldest_set_comes_first() -> None:
    tasks = [AdapterTask((1.0,), 5), AdapterTask((0.0,), 3), AdapterTask((1.0,), 4)]
    assert AdapterRotation().choose(tasks) == (0.0,)


def tuned(n_slots: int) -> Rig:
    return Rig(n_slots=n_slots, lora=("one.gguf",))


def test_each_set_has_the_text_that_it_has_alone() -> None:
    texts = {}
    for name, lora in (("on", ON), ("off", OFF)):
        rig = tuned(1)
        task = rig.submit("a prompt that is the same", lora=lora)
        rig.finish()
        texts[name] = rig.text(task)
    assert texts["on"] != texts["off"]
    rig = tuned(4)
    tasks = [
        (name, rig.submit("a prompt that is the same", lora=lora))
        for name, lora in (("on", ON), ("off", OFF), ("on", ON), ("off", OFF))
    ]
    rig.finish()
    assert [rig.text(task) for _, task in tasks] == [texts[name] for name, _ in tasks]


def test_a_batch_never_mixes_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = tuned(4)
    batches: list[tuple[Scales, set[Scales]]] = []
    decode = rig.backend.decode

    def watched(rows: Any) -> None:
        scales = {rig.engine.slots[row.seq].scales for row in rows}
        batches.append((rig.backend.adapters.used, scales))
        decode(rows)

    monkeypatch.setattr(rig.backend, "decode", watched)
    for i, lora in enumerate((ON, OFF, None, ON)):
        rig.submit(f"prompt {i} of some length", lora=lora)
    rig.finish()
    assert all(scales == {used} for used, scales in batches)
    assert {used for used, _ in batches} == {(1.0,), (0.0,)}


def test_what_another_set_has_read_is_not_reused() -> None:
    rig = tuned(1)
    prompt = "a prompt long enough to be worth keeping"
    cached = []
    for lora in (ON, ON, OFF, OFF):
        task = rig.submit(prompt, lora=lora)
        rig.finish()
        cached.append(rig.started(task).n_cached)
    assert [n > 0 for n in cached] == [False, True, False, True]


def test_a_slot_of_the_same_set_is_preferred() -> None:
    rig = tuned(2)
    prompt = "a prompt long enough to be worth keeping"
    on = rig.submit(prompt, lora=ON)
    rig.finish()
    off = rig.submit(prompt, lora=OFF)
    rig.finish()
    again = rig.submit(prompt, lora=ON)
    rig.finish()
    assert rig.started(on).slot != rig.started(off).slot
    assert rig.started(again).slot == rig.started(on).slot
