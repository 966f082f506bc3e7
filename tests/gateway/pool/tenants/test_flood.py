"""A tenant that floods the pool takes neither places nor tokens of the others."""

from tests.gateway.flood import FLOOD, N_NORMAL, Crowd


def test_a_flood_takes_nothing_from_nine_others() -> None:
    alone = Crowd(floods=False, duration_s=40.0).run()
    beside = Crowd(floods=True, duration_s=40.0).run()
    assert set(beside.refused) == {FLOOD}
    assert len(beside.tokens) == N_NORMAL + 1
    assert beside.jain >= 0.95
    assert beside.p99_s() <= 1.5 * alone.p99_s()
