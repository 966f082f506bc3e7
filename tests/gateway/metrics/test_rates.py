"""Tokens a second of a worker, from its heartbeats."""

from gateway.metrics.rates import TokenRates


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rates = TokenRates()
    for second in range(30):
        rates.note("w", 1, 100 * min(second, 10), float(second))
    assert rates.rate("w", 29.0) == 0.0
    for second in range(30, 45):
        rates.note("w", 1, 1000 + 50 * (second - 29), float(second))
    assert abs(rates.rate("w", 44.0) - 50) < 5


def test_a_restart_begins_anew_and_silence_is_no_rate() -> None:
    rates = TokenRates()
    rates.note("w", 1, 500, 0.0)
    rates.note("w", 1, 600, 1.0)
    assert rates.rate("w", 1.0) == 100.0
    rates.note("w", 2, 10, 2.0)
    assert rates.rate("w", 2.0) == 0.0
    assert rates.rate("w", 50.0) == rates.rate("nobody", 1.0) == 0.0


def test_many_heartbeats_do_not_pile_up() -> None:
    rates = TokenRates()
    for number in range(10_000):
        rates.note("w", 1, number, number / 1000)
    assert len(rates._series["w"].samples) < 100
    assert abs(rates.rate("w", 10.0) - 1000) < 20
