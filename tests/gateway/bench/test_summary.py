"""Figures by their definitions, on transcripts written by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench.client.dialects import AnswerPiece, Counts
from gateway.bench.client.transcript import Failure, Transcript
from gateway.bench.drive import BenchLoad
from gateway.bench.progress import fraction, line
from gateway.bench.summary import Slo, distribution, percentile, summarize
from gateway.bench.table import table


def answered(start_s: float, *arrivals_s: float, n_prompt: int = 10) -> Transcript:
    return Transcript(
        start_s=start_s,
        end_s=arrivals_s[-1] + 0.5,
        arrivals_s=list(arrivals_s),
        counts=Counts(n_prompt=n_prompt, n_cached=4, n_computed=6, n_output=len(arrivals_s)),
        status=200,
        finish="stop",
    )


def failed(failure: Failure, status: int = 0) -> Transcript:
    return Transcript(start_s=1.0, end_s=1.5, failure=failure, status=status)


def test_times_are_those_of_the_pieces_with_text() -> None:
    found = summarize([answered(1.0, 2.0, 2.1, 2.4)])
    assert found.ttft_ms and found.itl_ms and found.tpot_ms and found.e2e_ms
    assert found.ttft_ms.mean == pytest.approx(1000)
    assert found.e2e_ms.mean == pytest.approx(1400)  # the end of the body does not count
    assert found.tpot_ms.mean == pytest.approx(200)
    assert found.itl_ms.min == pytest.approx(100)
    assert found.itl_ms.max == pytest.approx(300)


def test_rates_are_over_the_first_request_to_the_last_end() -> None:
    found = summarize([answered(1.0, 2.0, 3.0), answered(2.0, 3.0, 5.5)])
    assert found.duration_s == 5.0
    assert found.requests_per_s == pytest.approx(0.4)
    assert found.output_tokens_per_s == pytest.approx(0.8)
    assert found.input_tokens_per_s == pytest.approx(4)
    assert (found.n_prompt, found.n_cached, found.n_computed) == (20, 8, 12)


def test_tokens_in_one_piece_count_by_the_servers_usage() -> None:
    request = answered(0.0, 1.0, 2.0)
    request.counts = Counts(n_output=11)
    found = summarize([request])
    assert found.n_output == 11
    assert found.tpot_ms and found.tpot_ms.mean == pytest.approx(100)
    assert found.n_cached == found.n_computed == -1  # nobody told


def test_failures_are_counted_by_kind_and_measured_in_nothing() -> None:
    found = summarize(
        [
            answered(1.0, 2.0),
            failed(Failure.REFUSED, 429),
            failed(Failure.REFUSED, 429),
            failed(Failure.TIMEOUT),
            failed(Failure.CUT),
        ]
    )
    assert found.errors == {"http_429": 2, "timeout": 1}
    assert (found.n_ok, found.n_failed, found.n_cut) == (1, 3, 1)
    assert found.e2e_ms and found.e2e_ms.n == 1


def test_an_answer_in_one_piece_has_no_first_token() -> None:
    request = answered(1.0, 2.0)
    request.streamed = False
    found = summarize([request])
    assert found.ttft_ms is None and found.itl_ms is None
    assert found.e2e_ms and found.e2e_ms.mean == pytest.approx(1000)


@pytest.mark.parametrize(
    ("slo", "n_good"),
    [
        (Slo(ttft_ms=1500), 1),
        (Slo(ttft_ms=2500), 2),
        (Slo(itl_ms=150), 1),
        (Slo(ttft_ms=1500, itl_ms=50), 0),
        (Slo(e2e_ms=1200), 1),
    ],
)
def test_goodput_counts_requests_that_keep_every_objective(slo: Slo, n_good: int) -> None:
    good, other = answered(0.0, 1.0, 1.1), answered(0.0, 2.0, 2.2)
    found = summarize([good, other, failed(Failure.BROKEN)], slo)
    assert found.n_good == n_good


def test_a_load_of_nothing_has_no_figures() -> None:
    found = summarize([])
    assert found.requests_per_s == 0 and found.ttft_ms is None
    assert table(found, Slo())


def test_percentiles_interpolate_as_numpy_does() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.9) == pytest.approx(3.7)
    assert percentile([7.0], 0.99) == 7.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_in_order(values: list[float]) -> None:
    found = distribution(values)
    assert found
    ordered = [found.min, found.p50, found.p90, found.p95, found.p99, found.max]
    assert all(a <= b + 1e-6 for a, b in itertools.pairwise(ordered))


def test_pieces_fill_a_transcript_in() -> None:
    transcript = Transcript(start_s=1.0)
    transcript.take(AnswerPiece(), 1.5)
    transcript.take(AnswerPiece(text="a"), 2.0)
    transcript.take(AnswerPiece(text="b", finish="stop"), 3.0)
    transcript.take(AnswerPiece(counts=Counts(n_prompt=3)), 3.5)
    transcript.take(AnswerPiece(counts=Counts(n_output=7)), 3.5)
    assert (transcript.text, transcript.finish, transcript.arrivals_s) == ("ab", "stop", [2.0, 3.0])
    assert transcript.counts == Counts(n_prompt=3, n_output=7)
    transcript.take(AnswerPiece(error="late"), 4.0)
    transcript.fail(Failure.BROKEN)
    assert (transcript.failure, transcript.message) == (Failure.ERROR_EVENT, "late")


def test_the_table_shows_totals_and_spreads() -> None:
    text = table(summarize([answered(1.0, 2.0, 2.1), failed(Failure.REFUSED, 503)]), Slo(e2e_ms=1))
    assert "1 ok, 1 http_503" in text
    assert "10, 4 cached, 6 computed" in text
    assert "0% good" in text
    assert "TTFT ms            1,000.0" in text


def test_progress_is_by_requests_or_time() -> None:
    assert fraction(BenchLoad(requests=10), 5, 0.0) == 0.5
    assert fraction(BenchLoad(requests=10), 5, 0.0, turns=2) == 0.25
    assert fraction(BenchLoad(duration_s=10), 5, 2.0) == 0.2
    assert fraction(BenchLoad(requests=10, duration_s=10), 1, 30.0) == 1.0
    assert line(0.5, 3, 20.0) == "[###############               ]  50%  3 done  20 events/s"
