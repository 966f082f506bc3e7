"""Which rows a step computes: decoding slots first, then prompts within the budget."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.messages import Done, TaskKey
from protocol.wire.sampling import SamplingParams
from tests.worker.engines import Rig
from worker.engine.backend import BatchRow
from worker.engine.fake.backend import FakeBackend
from worker.engine.fake.sampler import FakeSampler
from worker.engine.scheduling.budget import StepBudget
from worker.engine.scheduling.policy import StepPolicy, reading_order
from worker.engine.slot import Slot, SlotTask
from worker.engine.speculation.draft import Speculator
from worker.engine.speculation.lookup import PromptLookup
from worker.engine.task import EngineTask

NOW_S = 1000.0


def rig_of(
    prompt: int, beside: int = 3, **settings: object
) -> tuple[Rig, list[Sequence[BatchRow]]]:
    """Submit a prompt of `prompt` tokens while others decode; return the batches from then on."""
    settings = {"n_slots": 4, "n_ctx": 4096, "n_batch": 512} | settings
    rig = Rig(**settings)  # type: ignore[arg-type]
    for letter in "xyz"[:beside]:
        rig.submit(letter, n_predict=-1)
    if beside:
        rig.turn()
    batches: list[Sequence[BatchRow]] = []
    decode = rig.backend.decode

    def watched(rows: Sequence[BatchRow]) -> None:
        batches.append(rows)
        decode(rows)

    rig.backend.decode = watched  # type: ignore[method-assign]
    rig.submit("p" * (prompt - 1), n_predict=2)  # a BOS comes before it
    for _ in range(40):
        if rig.engine.n_busy or not batches:
            rig.turn()
    return rig, batches


def prompts(rows: Sequence[BatchRow]) -> int:
    return sum(len(row.tokens) for row in rows if row.seq == 3 and len(row.tokens) > 1)


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> int:
    """What a step may read of prompts, whatever the steps take here."""
    monkeypatch.setattr(StepBudget, "tokens", lambda *_, **__: 100)
    return 100


# ---- the default ----------------------------------------------------------------------------


def test_decoding_slots_and_prompts_are_one_batch(budget: int) -> None:
    _, batches = rig_of(250)
    assert [prompts(batch) for batch in batches[:4]] == [100, 100, 50, 0]
    assert all(len(batch) == 4 for batch in batches[:3])


def test_guesses_take_what_room_prompts_leave_in_the_batch() -> None:
    prompt = 384
    _, batches = rig_of(prompt, n_batch=64, drafter=PromptLookup(1, 48))
    for batch in batches:
        assert any(row.seq < 3 for row in batch), "decoding never waits"
    assert sum(map(prompts, batches)) == prompt


def test_guesses_and_prompts_fit_into_the_batch() -> None:
    rig, batches = rig_of(100, n_batch=32, drafter=PromptLookup(1, 4))
    assert all(sum(len(row.tokens) for row in batch) <= 32 for batch in batches)
    assert sum(map(prompts, batches)) == 100
    assert rig.engine.counters.n_draft > 0


@pytest.mark.parametrize(
    ("n_streams", "n_others", "n_waiting", "is_short"),
    [(1, 0, 1, True), (2, 0, 1, True), (1, 0, 2, False), (0, 2, 1, False), (2, 2, 2, True)],
)
def test_steps_are_short_unless_more_tasks_wait_than_stream(
    monkeypatch: pytest.MonkeyPatch, n_streams: int, n_others: int, n_waiting: int, is_short: bool
) -> None:
    asked: list[bool] = []

    def tokens(_self: StepBudget, n_decoding: int, *, is_short: bool) -> int:
        asked.append(is_short)
        return 50

    rig = Rig(n_slots=6, n_batch=256)
    for i in range(n_streams + n_others):
        rig.submit(f"{i}", stream=i < n_streams, n_predict=50)
    while any(slot.n_prompt_left for slot in rig.engine.slots) or not rig.engine.n_busy:
        rig.turn()
    monkeypatch.setattr(StepBudget, "tokens", tokens)
    for i in range(n_waiting):
        rig.submit("abcd"[i] * 100)
    rig.turn()
    assert asked == [is_short]


# ---- prompts --------------------------------------------------------------------------------

READING = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 100)), min_size=1, max_size=8)
"""Length of a prompt, and seconds since its task began."""


def reading(prompts: Sequence[tuple[int, float]]) -> list[Slot]:
    """Slots that read prompts of so many tokens, started so many seconds ago."""
    slots = []
    for i, (n, ago_s) in enumerate(prompts):
        slot = Slot(i, 8192)
        task = EngineTask(TaskKey(i), [7] * n, SamplingParams())
        slot.begin(SlotTask.of(task, FakeSampler(task.params), 0, order=i))
        slot.active.started_s = NOW_S - ago_s
        slot.active.awaits_prefix = False
        slots.append(slot)
    return slots


@pytest.fixture
def policy() -> StepPolicy:
    """The default, without guesses, over eight slots."""
    backend = Rig(n_slots=8, n_batch=4096).backend
    return StepPolicy(backend, Speculator(None, n_slots=0, n_rows=0))


def chunks(policy: StepPolicy, slots: Sequence[Slot], n: int, token_s: float) -> dict[int, int]:
    budget = StepBudget(1.0, 4096, token_s=token_s, idle_target_s=n * token_s)
    return {row.seq: len(row.tokens) for row in policy.plan(slots, budget).rows}


def test_a_short_prompt_passes_a_long_one_and_takes_what_it_needs(policy: StepPolicy) -> None:
    slots = reading([(900, 0.5), (20, 0.0), (5000, 0.7)])
    assert chunks(policy, slots, 100, 0.01) == {1: 20, 0: 80}


def test_nobody_passes_who_has_waited_as_long_as_reading_takes() -> None:
    assert [slot.id for slot in reading_order(reading([(900, 8.7), (20, 0.0)]), 0.01)] == [1, 0]
    assert [slot.id for slot in reading_order(reading([(900, 9.0), (20, 0.0)]), 0.01)] == [0, 1]


def test_of_equal_prompts_one_is_read_after_the_other(policy: StepPolicy) -> None:
    slots = reading([(160, 1.0)] * 3)
    assert chunks(policy, slots, 100, 0.01) == {0: 100}
    slots[0].tokens += [7] * 100
    assert chunks(policy, slots, 100, 0.01) == {0: 60, 1: 40}


@given(found=READING, n=st.integers(16, 4096))
def test_chunks_fit_the_budget_and_the_prompts(found: list[tuple[int, int]], n: int) -> None:
    policy = StepPolicy(Rig(n_slots=8, n_batch=4096).backend, Speculator(None, n_slots=0, n_rows=0))
    slots = reading(found)
    read = chunks(policy, slots, n, 0.01)
    total = sum(length for length, _ in found)
    assert min(n, total) - 2 * len(found) <= sum(read.values()) <= n
    for slot in slots:
        n_chunk, n_left = read.get(slot.id, 0), slot.n_prompt_left
        assert n_chunk <= n_left
        assert n_chunk != 1 or n_left == 1, "one row is computed by other kernels"
        assert not n_chunk or n_left - n_chunk != 1, "one row would be left"


@given(found=READING, n=st.integers(16, 4096))
def test_nobody_reads_before_who_comes_first_has_all(found: list[tuple[int, int]], n: int) -> None:
    policy = StepPolicy(Rig(n_slots=8, n_batch=4096).backend, Speculator(None, n_slots=0, n_rows=0))
    slots = reading(found)
    read = chunks(policy, slots, n, 0.01)
    for first, second in itertools.pairwise(reading_order(slots, 0.01)):
        if read.get(second.id, 0) > 2:
            assert read.get(first.id, 0) >= first.n_prompt_left - 1


def test_a_prompt_is_read_step_by_step_where_nobody_decodes(budget: int) -> None:
    _, batches = rig_of(250, beside=0)
    assert [sum(len(row.tokens) for row in batch) for batch in batches[:3]] == [100, 100, 50]


# ---- one sequence a batch -------------------------------------------------------------------


def test_slots_take_turns_where_a_batch_may_have_one_sequence_only(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(FakeBackend, "can_batch", False)
    _, batches = rig_of(250)
    assert all(len(batch) == 1 for batch in batches)
    assert [batch[0].seq for batch in batches[:8]] == [1, 2, 3, 0] * 2
    assert [prompts(batch) for batch in batches if batch[0].seq == 3][:4] == [100, 100, 50, 0]


def test_a_slot_that_waits_for_another_one_gives_up_its_turn(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(FakeBackend, "can_batch", False)
    rig = Rig(n_slots=3, n_ctx=4096, n_batch=512)
    tasks = [rig.submit("The same long prompt. " * 20, n_predict=3) for _ in range(3)]
    while rig.engine.n_busy or not any(isinstance(one, Done) for one in rig.emitted):
        rig.turn()
    ended = [one.task.id for one in rig.envelopes if isinstance(one.payload, Done)]
    assert sorted(ended) == tasks
