"""Which rows a step computes: decoding slots and prompts together, or in turn."""

import itertools
from collections.abc import Sequence

import pytest

from protocol.wire.messages import Delta, Done
from tests.worker.engines import Rig
from worker.engine.backend import BatchRow
from worker.engine.scheduling import plan
from worker.engine.scheduling.pacing import PacingPlan
from worker.engine.scheduling.scheduler import TILE, StepBudget
from worker.engine.speculation.lookup import PromptLookup


def rig_of(
    prompt: int,
    beside: int = 3,
    *,
    turns: int = 40,
    n_predict: int = -1,
    stream: bool = True,
    **settings: object,
) -> tuple[Rig, list[Sequence[BatchRow]]]:
    """Let a prompt of so many tokens come while others decode; return the batches from then on."""
    settings = {"n_slots": 4, "n_ctx": 4096, "n_batch": 512} | settings
    rig = Rig(**settings)  # type: ignore[arg-type]
    for letter in "xyz"[:beside]:
        rig.submit(letter, n_predict=n_predict, stream=stream)
    rig.turn()
    batches: list[Sequence[BatchRow]] = []
    decode = rig.backend.decode

    def watched(rows: Sequence[BatchRow]) -> None:
        batches.append(rows)
        decode(rows)

    rig.backend.decode = watched  # type: ignore[method-assign]
    rig.submit("p" * (prompt - 1), n_predict=2)  # a BOS comes before it
    for _ in range(turns):
        if rig.engine.n_busy or not batches:
            rig.turn()
    return rig, batches


def prompts(rows: Sequence[BatchRow]) -> int:
    return sum(len(row.tokens) for row in rows if row.seq == 3 and len(row.tokens) > 1)


def test_a_short_prompt_is_read_beside_the_decoding_slots() -> None:
    _, batches = rig_of(TILE - 4)
    assert [len(batch) for batch in batches[:2]] == [4, 4]
    assert prompts(batches[0]) == TILE - 4


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> int:
    """What a turn of prompts may read, whatever the steps take here."""
    monkeypatch.setattr(StepBudget, "tokens", lambda *_: 100)
    monkeypatch.setattr(StepBudget, "room", lambda *_: 125)
    return 100


@pytest.mark.parametrize("n", [TILE - 3, 5 * TILE, 4 * TILE + 30, 4 * TILE + 44])
def test_a_long_prompt_takes_turns_with_the_decoding_slots(n: int, budget: int) -> None:
    _, batches = rig_of(n)
    reading = [batch for batch in batches if prompts(batch)]
    assert sum(map(prompts, reading)) == n
    assert all(len(batch) == 1 for batch in reading if prompts(batch) >= TILE)
    n_read = 0
    for batch in batches:
        decoding = {row.seq for row in batch if len(row.tokens) == 1}
        n_read = 0 if {0, 1, 2} <= decoding else n_read + prompts(batch)
        assert n_read <= 1.25 * budget, "nobody who decodes waits for longer"


def test_prompts_have_steps_of_their_own_and_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepBudget, "tokens", lambda *_: 160)
    monkeypatch.setattr(StepBudget, "room", lambda *_: 200)
    rig, batches = rig_of(2, beside=1)
    batches.clear()
    for text in ("a" * 69, "b" * 79, "c" * 90):  # with a BOS that the last one takes over
        rig.submit(text, n_predict=-1)
    for _ in range(5):
        rig.turn()
    shapes = [[len(row.tokens) for row in batch] for batch in batches]
    assert shapes == [[70], [80], [1, 1, 1], [90], [1, 1, 1, 1]]


def test_a_gpu_reads_its_weights_once_for_both() -> None:
    _, batches = rig_of(300, is_gpu=True)
    reading = [batch for batch in batches if prompts(batch)]
    assert reading
    assert all(len(batch) == 4 for batch in reading)


def test_guesses_that_leave_no_room_for_prompts_have_their_turn_too() -> None:
    prompt = 6 * TILE
    _, batches = rig_of(prompt, n_batch=TILE, is_gpu=True, drafter=PromptLookup(1, 48))
    for first, second in itertools.pairwise(batches):
        assert any(row.seq < 3 for row in (*first, *second)), "nobody waits for two steps"
    assert sum(map(prompts, batches)) == prompt


def test_guesses_and_prompts_fit_into_the_batch() -> None:
    rig, batches = rig_of(100, n_batch=32, is_gpu=True, drafter=PromptLookup(1, 4))
    assert all(sum(len(row.tokens) for row in batch) <= 32 for batch in batches)
    assert sum(map(prompts, batches)) == 100
    assert rig.engine.counters.n_draft > 0


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> PacingPlan:
    """The turn of decoding slots before each piece of a long prompt, whatever the steps take."""
    monkeypatch.setattr(StepBudget, "tokens", lambda *_: TILE)
    monkeypatch.setattr(StepBudget, "room", lambda *_: TILE)
    turn = PacingPlan(3, 2 * TILE, 1000.0)
    monkeypatch.setattr(plan, "plan_turn", lambda *_: turn)
    return turn


def test_streams_have_several_steps_before_a_large_piece(turn: PacingPlan) -> None:
    _, batches = rig_of(5 * TILE)
    ahead = [0] * turn.n_steps
    shapes = [prompts(batch) for batch in batches]
    assert shapes[:9] == [TILE, *ahead, 2 * TILE, *ahead, 2 * TILE]


def test_what_streams_say_ahead_leaves_evenly(turn: PacingPlan) -> None:
    rig, _ = rig_of(5 * TILE)
    held = [due for due in rig.dues if due]
    assert len(held) == 2 * (turn.n_steps - 1)
    assert held[1] - held[0] == held[3] - held[2] == turn.interval_s


def test_nothing_is_held_where_nobody_reads_along(turn: PacingPlan) -> None:
    rig, batches = rig_of(5 * TILE, stream=False)
    assert not any(rig.dues)
    assert [prompts(batch) for batch in batches[:5]] == [TILE, 0, TILE, 0, TILE]


def test_streams_have_one_step_between_pieces_for_who_has_waited_too_long(
    turn: PacingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepBudget, "is_late", lambda *_: True)
    rig, batches = rig_of(5 * TILE)
    assert not any(rig.dues)
    assert [prompts(batch) for batch in batches[:5]] == [TILE, 0, TILE, 0, TILE]


def test_who_has_waited_for_others_is_overdue_but_not_who_is_read_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def tokens(_self: StepBudget, n_decoding: int, _cells: int, _n: int, is_overdue: bool) -> int:
        if n_decoding:
            asked.append(is_overdue)
        return TILE

    monkeypatch.setattr(StepBudget, "tokens", tokens)
    monkeypatch.setattr(StepBudget, "is_late", lambda _self, n, _waited: n < 5 * TILE)
    rig_of(5 * TILE)
    assert asked and not any(asked), "all of a prompt counts, not what is left of it"
    asked.clear()
    rig_of(5 * TILE - 1)
    assert asked and all(asked)


@pytest.mark.parametrize("n", range(2, 9))
def test_what_ends_a_task_leaves_at_once_with_all_before_it(turn: PacingPlan, n: int) -> None:
    rig, _ = rig_of(5 * TILE, n_predict=n)
    steps = list(zip(rig.steps, rig.dues, strict=True))
    assert all(type(one) is Delta for said, due in steps if due for one in said)
    assert sum(isinstance(one, Done) for said, due in steps if not due for one in said) == 4


def test_another_prompt_ends_the_turn(turn: PacingPlan) -> None:
    rig, batches = rig_of(5 * TILE, beside=2, turns=3)
    assert [len(batch) for batch in batches] == [1, 2, 2]
    rig.submit("q" * 300, n_predict=2)
    n = len(rig.dues)
    for _ in range(4):
        rig.turn()
    assert not any(rig.dues[n + 1 :])
    assert len(batches[3]) == 1, "a prompt is read at once"


def test_nothing_is_held_while_others_wait_for_the_prompt(turn: PacingPlan) -> None:
    rig, batches = rig_of(5 * TILE, beside=2, turns=1)
    rig.submit("p" * (5 * TILE - 1), n_predict=2)
    for _ in range(5):
        rig.turn()
    shapes = [[len(row.tokens) for row in batch] for batch in batches]
    assert shapes == [[TILE], [1, 1], [TILE], [1, 1], [TILE], [1, 1]]
    assert not any(rig.dues)
