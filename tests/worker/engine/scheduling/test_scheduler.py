"""Sharing a batch: pure decisions."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.scheduling.scheduler import (
    MIN_CHUNK,
    NEARLY_ALL,
    STRETCH,
    TILE,
    WHOLE,
    PromptChunk,
    StepBudget,
    Waiting,
    plan_chunks,
)

WAITING = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 1000), st.booleans()),
    max_size=8,
    unique_by=lambda t: t[1],
).map(lambda items: [Waiting(i, *item) for i, item in enumerate(items)])


NEARLY = st.sampled_from([NEARLY_ALL, WHOLE])


@given(waiting=WAITING, budget=st.integers(0, 4096), more=st.integers(0, 100), nearly=NEARLY)
def test_chunks_fit_the_budget_the_prompts_and_the_batch(
    waiting: list[Waiting], budget: int, more: int, nearly: float
) -> None:
    chunks = plan_chunks(waiting, budget, budget + more, nearly=nearly)
    left = {one.slot: one.n_left for one in waiting}
    least = min(budget, sum(left.values()))
    most = min(least * nearly + TILE, budget + more)
    least -= (2 + TILE) * len(waiting)
    assert least <= sum(chunk.n for chunk in chunks) <= most
    assert bool(chunks) == bool(waiting and budget)
    assert all(0 < chunk.n <= left[chunk.slot] for chunk in chunks)
    assert len({chunk.slot for chunk in chunks}) == len(chunks)


@given(waiting=WAITING, budget=st.integers(1, 4096))
def test_the_oldest_late_one_gets_at_least_half(waiting: list[Waiting], budget: int) -> None:
    late = min((one for one in waiting if one.is_late), key=lambda one: one.order, default=None)
    if late is None:
        return
    given_to = dict(plan_chunks(waiting, budget, budget))
    n, half = given_to.get(late.slot, 0), max(1, budget // 2)
    leaves_tiles = n > 0 and (late.n_left - n) % TILE == 0
    assert n >= min(late.n_left, half) - 2 or leaves_tiles


@given(waiting=WAITING, budget=st.integers(4, 4096))
def test_nobody_gets_anything_before_a_shorter_one_has_all(
    waiting: list[Waiting], budget: int
) -> None:
    waiting = [one._replace(is_late=False) for one in waiting]
    given_to = dict(plan_chunks(waiting, budget, budget))
    in_turn = sorted(waiting, key=lambda one: (one.n_left, one.order))
    for shorter, longer in itertools.pairwise(in_turn):
        if given_to.get(longer.slot, 0) > 1:
            assert given_to.get(shorter.slot, 0) >= shorter.n_left - 2


@given(waiting=WAITING, budget=st.integers(4, 4096))
def test_no_token_is_read_alone_unless_it_is_the_only_one(
    waiting: list[Waiting], budget: int
) -> None:
    left = {one.slot: one.n_left for one in waiting}
    for slot, n in plan_chunks(waiting, budget, budget):
        assert left[slot] == 1 or (n >= 2 and left[slot] - n != 1) or budget < 4 * len(waiting)


def test_a_short_prompt_passes_a_long_one() -> None:
    waiting = [Waiting(0, 5000, 1), Waiting(1, 20, 2), Waiting(2, 900, 3)]
    assert plan_chunks(waiting, 100, 112) == [PromptChunk(1, 20), PromptChunk(2, 68)], (
        "13 tiles are left"
    )


@given(waiting=WAITING, budget=st.integers(4, 4096), more=st.integers(0, 100))
def test_in_a_turn_only_the_shortest_and_a_late_one_are_cut(
    waiting: list[Waiting], budget: int, more: int
) -> None:
    given_to = dict(plan_chunks(waiting, budget, budget + more, n_read=0))
    shortest = min(waiting, key=lambda one: (one.n_left, one.order), default=None)
    late = min((one for one in waiting if one.is_late), key=lambda one: one.order, default=None)
    for one in waiting:
        if one not in (shortest, late):
            assert given_to.get(one.slot, 0) in (0, one.n_left)
    assert bool(given_to) == bool(waiting)


@given(
    waiting=WAITING,
    budget=st.integers(1, 4096),
    more=st.integers(0, 100),
    n_read=st.integers(1, 4096),
    nearly=NEARLY,
)
def test_a_turn_that_has_begun_goes_on_with_whole_prompts_or_a_tile_and_ends(
    waiting: list[Waiting], budget: int, more: int, n_read: int, nearly: float
) -> None:
    left = {one.slot: one.n_left for one in waiting}
    chunks = plan_chunks(waiting, budget, budget + more, n_read=n_read, nearly=nearly)
    late = min((one for one in waiting if one.is_late), key=lambda one: one.order, default=None)
    shortest = min(waiting, key=lambda one: (one.n_left, one.order), default=None)
    cut = (late, shortest) if budget - n_read >= TILE else (late,)
    may_be_cut = {one.slot for one in cut if one is not None}
    for chunk in chunks:
        assert chunk.n == left[chunk.slot] or chunk.slot in may_be_cut
    assert n_read + sum(chunk.n for chunk in chunks) <= budget + more or not chunks


def test_each_prompt_but_tiny_ones_has_its_own_step() -> None:
    waiting = [Waiting(0, 70, 1), Waiting(1, 71, 2), Waiting(2, 72, 3)]
    assert plan_chunks(waiting, 150, 170, n_read=0) == [PromptChunk(0, 70)]
    assert plan_chunks(waiting[1:], 150, 170, n_read=70) == [PromptChunk(1, 71)]
    assert plan_chunks(waiting[2:], 150, 170, n_read=141) == [], "the others' turn"
    assert sum(n for _, n in plan_chunks(waiting, 150, 170)) == 150, "where nobody takes turns"


def test_what_is_left_of_a_turn_goes_to_the_next_prompt_from_a_tile_on() -> None:
    waiting = [Waiting(1, 166, 2)]
    assert plan_chunks(waiting, 137, 171, n_read=64) == [PromptChunk(1, 102)]
    assert plan_chunks(waiting, 137, 171, n_read=102) == []


def test_tiny_prompts_share_a_step() -> None:
    waiting = [Waiting(i, 15, i) for i in range(4)]
    assert len(plan_chunks(waiting, 150, 170, n_read=0)) == 3


def test_a_prompt_that_nearly_fits_is_read_to_its_end() -> None:
    assert plan_chunks([Waiting(0, 125, 1)], 100, 130) == [PromptChunk(0, 125)]
    assert plan_chunks([Waiting(0, 125, 1)], 100, 110) == [PromptChunk(0, 61)]
    assert plan_chunks([Waiting(0, 150, 1)], 100, 130) == [PromptChunk(0, 86)]
    assert plan_chunks([Waiting(0, 150, 1)], 100, 150, nearly=WHOLE) == [PromptChunk(0, 150)]


def test_nothing_is_taken_back_of_one_that_gets_nothing() -> None:
    waiting = [Waiting(0, 40, 1, is_late=True), Waiting(1, 1, 2)]
    assert plan_chunks(waiting, 1, 1) == [PromptChunk(1, 1)]


def test_what_is_no_whole_tile_is_read_first() -> None:
    assert plan_chunks([Waiting(0, 90, 1)], 64, 512) == [PromptChunk(0, 90)]
    assert plan_chunks([Waiting(0, 90, 1)], 64, 80) == [PromptChunk(0, 26)], (
        "there is no room for all"
    )
    assert plan_chunks([Waiting(0, 1203, 1)], 64, 80) == [PromptChunk(0, 51)]
    assert plan_chunks([Waiting(0, 1203, 1)], 64, 120) == [PromptChunk(0, 115)]
    assert plan_chunks([Waiting(0, 1155, 1)], 64, 80) == [PromptChunk(0, 67)]


@given(n=st.integers(2 * TILE, 5000), room=st.sampled_from([TILE, 512]))
def test_a_prompt_read_tile_by_tile_ends_with_one(n: int, room: int) -> None:
    chunks = []
    while n:
        ((_, read),) = plan_chunks([Waiting(0, n, 1)], TILE, room)
        chunks.append(read)
        n -= read
    assert chunks[0] < 2 * TILE if room > TILE else chunks[0] <= TILE
    assert set(chunks[1:-2]) <= {TILE}
    if sum(chunks) % TILE != 1:  # no token is read alone
        assert set(chunks[1:]) <= {TILE}


def test_a_long_prompt_that_has_waited_gets_half() -> None:
    waiting = [Waiting(0, 5000, 1, is_late=True), Waiting(1, 20, 2), Waiting(2, 900, 3)]
    assert plan_chunks(waiting, 100, 112) == [
        PromptChunk(0, 50),
        PromptChunk(1, 20),
        PromptChunk(2, 30),
    ]


def learnt(**settings: float) -> StepBudget:
    """Decoding takes 20 ms whatever it is; a prompt token takes 1 ms."""
    budget = StepBudget(target_s=0.1, n_batch=2048, **settings)  # type: ignore[arg-type]
    for _ in range(20):
        budget.observe(n_decoding=4, n_prompt=0, elapsed_s=0.02)
        budget.observe(n_decoding=4, n_prompt=100, elapsed_s=0.02 + 0.1)
    return budget


def test_budget_follows_the_measured_speed() -> None:
    assert learnt().tokens(4) == TILE  # 80 would fit into 100 ms - 20 ms, in two tiles


def test_budget_is_larger_when_nobody_waits_for_tokens() -> None:
    assert 480 <= learnt().tokens(0) <= 500


def test_a_step_may_be_longer_to_fill_a_tile() -> None:
    budget = StepBudget(target_s=0.1, n_batch=2048, token_s=0.004)
    assert budget.tokens(1) == TILE
    assert StepBudget(target_s=0.1, n_batch=2048, token_s=0.02).tokens(1) == MIN_CHUNK


def test_a_step_may_be_longer_while_more_wait_for_their_first_token_than_for_their_next() -> None:
    budget = StepBudget(target_s=0.1, n_batch=2048, token_s=0.001)
    assert budget.tokens(4, n_waiting=4) == 100
    assert budget.tokens(2, n_waiting=6) == 375


def test_where_prompts_take_turns_a_step_is_longer_the_more_wait() -> None:
    budget = StepBudget(target_s=0.1, n_batch=2048, token_s=0.001, takes_turns=True)
    assert budget.tokens(4, n_waiting=1) == 100
    assert budget.tokens(4, n_waiting=2) == 300
    assert budget.tokens(4, n_waiting=3) == 400
    assert budget.tokens(1, n_waiting=7) == 500, "never more than so many targets"
    assert budget.tokens(60, n_waiting=2) == 100, "many wait for their next one"
    assert budget.tokens(7, n_waiting=1, is_overdue=True) == 500, "it has waited enough"
    assert StepBudget(0.1, 2048, 0.001).tokens(7, n_waiting=1, is_overdue=True) == 100


def test_a_step_is_stretched_for_a_rest_but_not_far() -> None:
    budget = StepBudget(target_s=0.1, n_batch=2048, token_s=0.001)
    assert budget.room(100, n_decoding=4) == round(1000 * 0.1 * STRETCH)
    assert budget.room(400, n_decoding=4) == 400 * NEARLY_ALL
    assert budget.room(400, n_decoding=4, nearly=WHOLE) == 400 * WHOLE
    assert budget.room(400, n_decoding=0) == 2048


def test_a_cell_keeps_its_assumed_price_where_the_steps_tell_nothing() -> None:
    budget = StepBudget(target_s=0.1, n_batch=2048, token_s=0.003, cell_share=1e-4)
    for i in range(4 * 400):
        assert budget.cell_s == 0.003 * 1e-4
        noise_s = 0.004 * (i * 7 % 5) / 5
        budget.observe(n_decoding=4, n_prompt=0, elapsed_s=0.02 + noise_s, n_cells=500)
    assert StepBudget(target_s=0.1, n_batch=2048, token_s=0.003).cell_s == 0.0


def test_what_few_rows_take_is_not_guessed_beyond_what_many_took() -> None:
    budget = StepBudget(target_s=0.1, n_batch=2048, token_s=0.001)
    budget.decode.weights = [0.5, 0.0, 0.0]  # a fit gone astray
    assert budget.tokens(1) == MIN_CHUNK
    budget.decode.note(8, 0.04)
    assert budget.decode.predict(1, 0) == 0.04 / 8
    assert budget.decode.predict(8, 0) == 0.04
    assert budget.tokens(1) == TILE


def test_nearly_a_tile_becomes_one() -> None:
    budget = StepBudget(target_s=0.1, n_batch=2048, token_s=0.1 * STRETCH / 50)
    assert budget.tokens(1) == TILE
    longer = 0.1 * STRETCH / 30
    assert StepBudget(target_s=0.1, n_batch=2048, token_s=longer).tokens(1) == 30
    assert StepBudget(target_s=0.1, n_batch=50, token_s=budget.token_s).tokens(1) == 49


def test_a_prompt_is_late_when_it_waited_longer_than_its_reading_takes() -> None:
    budget = StepBudget(target_s=0.1, n_batch=2048, token_s=0.001)
    assert not budget.is_late(1000, waited_s=3.9)
    assert budget.is_late(1000, waited_s=4.1)


@given(token_s=st.floats(0, 10), elapsed_s=st.floats(0, 10), n_decoding=st.integers(0, 255))
def test_budget_always_makes_progress(token_s: float, elapsed_s: float, n_decoding: int) -> None:
    budget = StepBudget(target_s=0.1, n_batch=512, token_s=token_s)
    budget.observe(n_decoding=n_decoding, n_prompt=0, elapsed_s=elapsed_s)
    tokens = budget.tokens(n_decoding)
    assert MIN_CHUNK <= tokens <= 512 - n_decoding
