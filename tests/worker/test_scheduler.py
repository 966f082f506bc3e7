"""Sharing a batch: pure decisions."""

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.scheduler import MIN_CHUNK, Budget, Chunk, Waiting, plan_chunks

WAITING = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 1000)), max_size=8, unique_by=lambda t: t[1]
).map(lambda items: [Waiting(i, n, order) for i, (n, order) in enumerate(items)])


@given(waiting=WAITING, budget=st.integers(0, 4096))
def test_chunks_fit_the_budget_and_the_prompts(waiting: list[Waiting], budget: int) -> None:
    chunks = plan_chunks(waiting, budget)
    left = {one.slot: one.n_left for one in waiting}
    most = min(budget, sum(left.values()))
    assert most - 2 * len(waiting) <= sum(chunk.n for chunk in chunks) <= most
    assert bool(chunks) == bool(waiting and budget)
    assert all(0 < chunk.n <= left[chunk.slot] for chunk in chunks)
    assert len({chunk.slot for chunk in chunks}) == len(chunks)


@given(waiting=WAITING, budget=st.integers(1, 4096))
def test_the_oldest_gets_at_least_half(waiting: list[Waiting], budget: int) -> None:
    if not waiting:
        return
    oldest = min(waiting, key=lambda one: one.order)
    given_to = dict(plan_chunks(waiting, budget))
    assert given_to.get(oldest.slot, 0) >= min(oldest.n_left, max(1, budget // 2)) - 2


@given(waiting=WAITING, budget=st.integers(4, 4096))
def test_no_token_is_read_alone_unless_it_is_the_only_one(
    waiting: list[Waiting], budget: int
) -> None:
    left = {one.slot: one.n_left for one in waiting}
    for slot, n in plan_chunks(waiting, budget):
        assert left[slot] == 1 or (n >= 2 and left[slot] - n != 1) or budget < 4 * len(waiting)


def test_a_short_prompt_passes_a_long_one() -> None:
    waiting = [Waiting(0, 5000, 1), Waiting(1, 20, 2), Waiting(2, 900, 3)]
    assert plan_chunks(waiting, 100) == [Chunk(0, 50), Chunk(1, 20), Chunk(2, 30)]


def test_budget_follows_the_measured_speed() -> None:
    budget = Budget(target_s=0.1, n_batch=2048)
    for _ in range(20):
        budget.observe(n_decoding=4, n_prompt=0, elapsed_s=0.02)
        budget.observe(n_decoding=4, n_prompt=100, elapsed_s=0.02 + 0.1)
    assert 70 <= budget.tokens(4) <= 80  # (100 ms - 20 ms) at 1 ms a token


def test_budget_is_larger_when_nobody_waits_for_tokens() -> None:
    budget = Budget(target_s=0.1, n_batch=2048, token_s=0.001, decode_s=0.02)
    assert budget.tokens(0) == 250
    assert budget.tokens(4) == 80


@given(token_s=st.floats(0, 10), decode_s=st.floats(0, 10), n_decoding=st.integers(0, 255))
def test_budget_always_makes_progress(token_s: float, decode_s: float, n_decoding: int) -> None:
    budget = Budget(target_s=0.1, n_batch=512, token_s=token_s, decode_s=decode_s)
    tokens = budget.tokens(n_decoding)
    assert MIN_CHUNK <= tokens <= 512 - n_decoding
