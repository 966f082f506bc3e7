"""A tenant that floods the pool takes neither places nor tokens of the others."""

import pytest

from tests.gateway.flood import FLOOD, N_NORMAL, STREAMS, Crowd


@pytest.mark.slow
@pytest.mark.parametrize(("n_streams", "jain"), [(STREAMS, 0.95), (1, 0.0)])
def test_a_flood_takes_nothing_from_nine_others(n_streams: int, jain: float) -> None:
    """With one request each the nine leave slots free; the flood has them, so it has more."""
    alone = Crowd(floods=False, n_streams=n_streams, duration_s=40.0).run()
    beside = Crowd(floods=True, n_streams=n_streams, duration_s=40.0).run()
    assert set(beside.refused) == {FLOOD}
    assert len(beside.tokens) == N_NORMAL + 1
    assert beside.jain >= jain
    # On this clock times are multiples of a prompt's 0.2 s, up to rounding.
    assert round(beside.p99_s() / alone.p99_s(), 2) <= 1.5
