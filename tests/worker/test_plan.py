"""Which rows a step computes: decoding slots and prompts together, or in turn."""

import itertools
from collections.abc import Sequence

import pytest

from tests.worker.engines import Rig
from worker.engine.backend import Row
from worker.engine.lookup import Lookup
from worker.engine.scheduler import TILE, Budget


def rig_of(prompt: int, beside: int = 3, **settings: object) -> tuple[Rig, list[Sequence[Row]]]:
    """Let a prompt of so many tokens come while others decode; return the batches from then on."""
    settings = {"n_slots": 4, "n_ctx": 4096, "n_batch": 512} | settings
    rig = Rig(**settings)  # type: ignore[arg-type]
    for letter in "xyz"[:beside]:
        rig.submit(letter, n_predict=-1)
    rig.turn()
    batches: list[Sequence[Row]] = []
    decode = rig.backend.decode

    def watched(rows: Sequence[Row]) -> None:
        batches.append(rows)
        decode(rows)

    rig.backend.decode = watched  # type: ignore[method-assign]
    rig.submit("p" * (prompt - 1), n_predict=2)  # a BOS comes before it
    for _ in range(40):
        rig.turn()
    return rig, batches


def prompts(rows: Sequence[Row]) -> int:
    return sum(len(row.tokens) for row in rows if row.seq == 3 and len(row.tokens) > 1)


def test_a_short_prompt_is_read_beside_the_decoding_slots() -> None:
    _, batches = rig_of(TILE - 4)
    assert [len(batch) for batch in batches[:2]] == [4, 4]
    assert prompts(batches[0]) == TILE - 4


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> int:
    """What a turn of prompts may read, whatever the steps take here."""
    monkeypatch.setattr(Budget, "tokens", lambda *_: 100)
    monkeypatch.setattr(Budget, "room", lambda *_: 125)
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
    monkeypatch.setattr(Budget, "tokens", lambda *_: 160)
    monkeypatch.setattr(Budget, "room", lambda *_: 200)
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
    _, batches = rig_of(prompt, n_batch=TILE, is_gpu=True, drafter=Lookup(1, 48))
    for first, second in itertools.pairwise(batches):
        assert any(row.seq < 3 for row in (*first, *second)), "nobody waits for two steps"
    assert sum(map(prompts, batches)) == prompt


def test_guesses_and_prompts_fit_into_the_batch() -> None:
    rig, batches = rig_of(100, n_batch=32, is_gpu=True, drafter=Lookup(1, 4))
    assert all(sum(len(row.tokens) for row in batch) <= 32 for batch in batches)
    assert sum(map(prompts, batches)) == 100
    assert rig.engine.counters.n_draft > 0
