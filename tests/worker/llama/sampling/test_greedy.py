"""The likeliest token, biases added: what llama.cpp's greedy chain chooses."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.llama.sampling.greedy import GreedySampler, summed

# Few different values, so that there are ties.
LOGITS = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)
BIASES = st.dictionaries(
    st.integers(0, 11), st.sampled_from([-np.inf, -4.0, -1.0, 0.0, 1.0, 4.0]), max_size=12
)


@given(logits=LOGITS, biases=BIASES)
def test_the_choice_is_that_of_adding_all_and_taking_the_first_greatest(
    logits: list[float], biases: dict[int, float]
) -> None:
    biases = {token: bias for token, bias in biases.items() if token < len(logits)}
    row = np.array(logits, np.float32)
    expected = row.copy()
    for token, bias in biases.items():
        expected[token] += np.float32(bias)
    assert GreedySampler(biases).choose(row) == int(expected.argmax())
    assert row.tolist() == logits


def test_a_token_with_two_biases_is_left_to_the_chain() -> None:
    assert summed([(1, 0.5), (2, 1.0)]) == {1: 0.5, 2: 1.0}
    assert summed([(1, 0.5), (1, 1.0)]) is None
