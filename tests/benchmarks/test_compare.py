"""The comparison with llama-server: what is counted, and how it is judged."""

from typing import Any

import pytest

from benchmarks.compare.fresh import count_new
from benchmarks.compare.limits import LIMITS, By, verdicts
from benchmarks.compare.report import markdown, values_of
from benchmarks.compare.servers import Flags, Side, command
from benchmarks.compare.workloads import WORKLOADS, Measured
from gateway.bench.summary import summarize


def test_a_shared_beginning_is_new_once() -> None:
    assert count_new([([1, 2, 3], [1, 2, 3, 9]), ([1, 2, 4], [1, 2, 4, 9])]) == 4


def test_the_next_turn_finds_the_answer_before_it() -> None:
    first = ([1, 2], [1, 2, 3, 4])
    assert count_new([first, ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7])]) == 4


def test_every_prompt_costs_a_token() -> None:
    assert count_new([([1, 2], [1, 2]), ([1, 2], [1, 2])]) == 3


def result(workload: str, side: Side, number: int, **figures: float) -> dict[str, Any]:
    details: dict[str, Any] = {"load": {"errors": {}}, "background": {"errors": {}}}
    return {
        "workload": workload,
        "side": side.value,
        "round": number,
        "figures": figures,
        "details": details,
    }


RESULTS = [
    result("streams", Side.OURS, 0, tokens_per_s=90, ttft_p50_ms=10, ttft_p99_ms=20),
    result("streams", Side.THEIRS, 0, tokens_per_s=100, ttft_p50_ms=50, ttft_p99_ms=60),
    result("streams", Side.OURS, 1, tokens_per_s=110, ttft_p50_ms=10, ttft_p99_ms=20),
    result("streams", Side.THEIRS, 1, tokens_per_s=100, ttft_p50_ms=50, ttft_p99_ms=10),
    result("conversations", Side.OURS, 0, computed_per_new=1.01),
    result("conversations", Side.THEIRS, 0, computed_per_new=3.0),
    result("memory", Side.OURS, 0, pss_mb=700),
    result("memory", Side.THEIRS, 0, pss_mb=500),
    result("unary", Side.OURS, 0, requests_per_s=3),
]


def test_rows_are_judged_by_the_medians_of_the_rounds() -> None:
    found = {(one.limit.workload, one.limit.figure): one for one in verdicts(values_of(RESULTS))}
    speed = found["streams", "tokens_per_s"]
    assert (speed.value, speed.is_met) == (1.0, True)
    assert found["streams", "ttft_p99_ms"].value == pytest.approx((20 / 60 + 20 / 10) / 2)
    conversations = found["conversations", "computed_per_new"]
    assert conversations.limit.by is By.OURS and conversations.is_met
    assert (found["memory", "pss_mb"].value, found["memory", "pss_mb"].is_met) == (200, False)
    assert ("unary", "requests_per_s") not in found  # only one side was measured


def test_a_machine_that_slows_down_between_rounds_is_the_same_for_both() -> None:
    rounds = {Side.OURS: [120.0, 66.0, 55.0], Side.THEIRS: [100.0, 60.0, 50.0]}
    values = {("one-stream", side, "decode_tokens_per_s"): all_ for side, all_ in rounds.items()}
    (one,) = verdicts(values)
    assert (one.ours, one.theirs) == (66.0, 60.0)
    assert one.value == pytest.approx(1.1)
    values["one-stream", Side.OURS, "decode_tokens_per_s"].append(1.0)  # its round was broken off
    assert verdicts(values)[0].value == pytest.approx(1.1)


def test_the_report_has_a_row_a_limit_and_names_failed_runs() -> None:
    broken = result("streams", Side.OURS, 1)
    broken["details"]["load"]["errors"] = {"timeout": 1}
    document = {
        "machine": {"cores": "2"},
        "versions": {"python": "3"},
        "settings": {"slots": 8},
        "results": [*RESULTS, broken],
    }
    text = markdown(document)
    assert "| 8 streams, distinct prompts | tok/s | 100 | 100 | 1.00 | >= 1 | ok |" in text
    assert "+200 | <= 150 | MISS" in text
    assert "streams on llamapool, round 1: failed requests" in text


def test_every_limit_is_of_a_figure_that_its_workload_has() -> None:
    nothing = summarize([])
    known = {
        (workload.name, figure)
        for workload in WORKLOADS
        for figure in workload.figures(Measured(load=nothing, background=nothing))
    }
    assert {(limit.workload, limit.figure) for limit in LIMITS} <= known


def test_both_servers_get_the_same_flags_and_workers_share_them(tmp_path: Any) -> None:
    flags = Flags(model=tmp_path / "m", slots=8, ctx=1024, threads=2, extra=("-x",), workers=2)
    ours = command(Side.OURS, tmp_path / "b", flags, 1)
    theirs = command(Side.THEIRS, tmp_path / "b", flags, 1)
    at = theirs.index("-np")
    assert theirs[at : at + 4] == ["-np", "8", "-c", "1024"]
    at = ours.index("-np")
    assert ours[at : at + 4] == ["-np", "4", "-c", "512"]
    assert ours[ours.index("-t") :] == theirs[theirs.index("-t") :]
