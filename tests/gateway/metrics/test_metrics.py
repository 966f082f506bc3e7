"""What a scrape sees."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.counters import Histogram
from gateway.metrics.ended_task import EndedTask
from gateway.metrics.families.rows import MAX_DEPARTED
from gateway.metrics.metrics import Metrics
from gateway.metrics.stats_book import StatsBook
from gateway.metrics.view import WorkerView
from protocol.wire.facts import Stats
from tests.gateway.metrics.samples import scraped

ROOT = Path(__file__).parents[3]

LLAMACPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 67
# HELP llamacpp:prompt_tokens_cached_total Number of prompt tokens reused from the cache
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 3
# HELP llamacpp:prompt_seconds_total Total time spent processing prompts
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 0.5
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 40
# HELP llamacpp:tokens_predicted_seconds_total Total time spent generating tokens
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 2
# HELP llamacpp:n_decode_total Total number of llama_decode() calls, excluding speculative \
decoding and multimodal decoding
# TYPE llamacpp:n_decode_total counter
llamacpp:n_decode_total 20
# HELP llamacpp:n_tokens_max Largest observed sequence length (prompt + generation)
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max 99
# HELP llamacpp:spec_decode_num_draft_tokens_total Speculative: Total draft tokens generated
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 0
# HELP llamacpp:spec_decode_num_accepted_tokens_total Speculative: Total draft tokens accepted \
by the target model
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 0
# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding \
verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 0
# HELP llamacpp:prompt_tokens_seconds Average prompt throughput in tokens/s
# TYPE llamacpp:prompt_tokens_seconds gauge
llamacpp:prompt_tokens_seconds 134
# HELP llamacpp:predicted_tokens_seconds Average generation throughput in tokens/s
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds 20
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 3
# HELP llamacpp:requests_deferred Number of requests deferred
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 5
# HELP llamacpp:n_busy_slots_per_decode Average number of busy slots per llama_decode() call
# TYPE llamacpp:n_busy_slots_per_decode gauge
llamacpp:n_busy_slots_per_decode 1.5
# HELP llamacpp:kv_cache_usage_ratio KV-cache usage. 1 means 100 percent usage.
# TYPE llamacpp:kv_cache_usage_ratio gauge
llamacpp:kv_cache_usage_ratio 0.25
# HELP llamacpp:kv_cache_tokens KV-cache tokens.
# TYPE llamacpp:kv_cache_tokens gauge
llamacpp:kv_cache_tokens 50
"""


class Pool:
    """A pool of two workers, one of them loading."""

    def workers(self) -> tuple[WorkerView, ...]:
        return (
            WorkerView(name="a", model="m", state="ready", n_slots=4, n_busy=3),
            WorkerView(name="b", model="m", state="loading", n_slots=0, n_busy=0),
        )

    def queue_depths(self) -> Mapping[str, int]:
        return {"m": 5}

    def n_quarantined(self) -> int:
        return 0

    def tasks_of_keys(self) -> Mapping[str, tuple[int, int]]:
        return {}


def metrics() -> Metrics:
    gateway_metrics = Metrics()
    stats = Stats(
        n_prompt=67,
        n_cached=3,
        prompt_s=0.5,
        n_predicted=40,
        predicted_s=2.0,
        n_decode=20,
        n_busy=30,
        n_tokens_max=99,
        n_kv_used=50,
        n_kv=200,
        decode_s=1.5,
    )
    gateway_metrics.record_stats("a", "m", 1, stats)
    return gateway_metrics


def samples(gateway_metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and the values of its labels in the order of their names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(scraped(gateway_metrics, Pool()))
        for sample in family.samples
    }


def test_the_lines_of_llama_server_are_the_same_to_the_letter() -> None:
    assert scraped(metrics(), Pool()).startswith(LLAMACPP)


def test_throughput_covers_the_time_since_the_last_scrape() -> None:
    gateway_metrics = metrics()
    scraped(gateway_metrics, Pool())
    gateway_metrics.record_stats(
        "a", "m", 1, Stats(n_prompt=167, prompt_s=0.75, n_predicted=40, predicted_s=2.0)
    )
    second = samples(gateway_metrics)
    assert second["llamacpp:prompt_tokens_seconds", ()] == 400
    assert second["llamacpp:predicted_tokens_seconds", ()] == 0
    assert second["llamacpp:prompt_tokens_total", ()] == 167


def test_an_empty_pool_renders() -> None:
    assert samples(Metrics())["llamacpp:n_busy_slots_per_decode", ()] == 0


def test_the_work_of_dead_workers_is_kept() -> None:
    book = StatsBook()
    book.record("a", "m", 1, Stats(n_predicted=10, n_tokens_max=7))
    book.record("a", "m", 1, Stats(n_predicted=15, n_tokens_max=7))
    book.record("a", "m", 2, Stats(n_predicted=4, n_tokens_max=3))
    book.record("b", "m", 3, Stats(n_predicted=1))
    assert repr(book) == "<StatsBook n_prompt=0 n_predicted=20>"
    assert book.totals()["n_tokens_max"] == 7
    assert book.latest("a").n_predicted == 4


def test_counters_that_go_back_within_a_start_are_not_believed() -> None:
    book = StatsBook()
    book.record("a", "m", 1, Stats(n_predicted=10))
    book.record("a", "m", 1, Stats(n_predicted=8))
    assert book.totals()["n_predicted"] == 10


def test_workers_with_ever_new_names_do_not_grow_the_page() -> None:
    gateway_metrics = metrics()
    for i in range(1000):
        gateway_metrics.record_stats(f"pod-{i}", "m", 1, Stats(n_predicted=2))
        gateway_metrics.worker_lost(f"pod-{i}", "m")
        gateway_metrics.forget_worker(f"pod-{i}")
    found = samples(gateway_metrics)
    for name, each in (
        ("llamapool_predicted_tokens_total", 2),
        ("llamapool_worker_losses_total", 1),
    ):
        rows = {
            worker: n
            for (family, labels), n in found.items()
            if family == name
            for _, worker in [labels]
        }
        assert rows["a"] == (40 if each == 2 else 0), "a worker that is there keeps its row"
        assert rows[""] == each * (1000 - MAX_DEPARTED)
        assert [rows[f"pod-{i}"] for i in range(1000 - MAX_DEPARTED, 1000)] == [each] * MAX_DEPARTED
        assert len(rows) == MAX_DEPARTED + 2 + (each == 1), (
            "b has no counters, but no losses either"
        )
    assert found["llamacpp:tokens_predicted_total", ()] == 2040
    lags = [key for key in found if key[0] == "llamapool_link_loop_lag_seconds_count"]
    assert len(lags) == MAX_DEPARTED + 2


def test_a_worker_that_leaves_for_a_moment_keeps_its_rows_however_many_have_left_before() -> None:
    gateway_metrics = Metrics()
    for name in ("old", *(f"pod-{i}" for i in range(2 * MAX_DEPARTED)), "old"):
        gateway_metrics.record_stats(name, "m", 1, Stats(n_predicted=2))
        gateway_metrics.worker_lost(name, "m")
    found = samples(gateway_metrics)
    for family in ("predicted_tokens_total", "worker_losses_total", "link_loop_lag_seconds_count"):
        assert found[f"llamapool_{family}", ("m", "old")] > 0


def test_guesses_are_counted_over_workers_and_positions() -> None:
    gateway_metrics = metrics()
    drafts = {"n_draft": 10, "n_draft_accepted": 6, "n_drafts": 4}
    gateway_metrics.record_stats("a", "m", 1, Stats(**drafts, accepted_at=(3, 2, 1)))
    gateway_metrics.record_stats("a", "m", 1, Stats(**drafts, accepted_at=(4, 2, 1)))
    gateway_metrics.record_stats(
        "b", "m", 1, Stats(n_draft=1, n_draft_accepted=1, n_drafts=1, accepted_at=(1,))
    )
    found = samples(gateway_metrics)
    assert found["llamacpp:spec_decode_num_draft_tokens_total", ()] == 11
    assert found["llamacpp:spec_decode_num_accepted_tokens_total", ()] == 7
    assert found["llamacpp:spec_decode_num_drafts_total", ()] == 5
    per_position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    assert [found[per_position, (str(i),)] for i in range(3)] == [5, 2, 1]


def test_positions_are_not_shown_until_somebody_guessed() -> None:
    assert "per_pos" not in scraped(metrics(), Pool())


def test_own_metrics_are_labelled_by_model_and_worker() -> None:
    gateway_metrics = metrics()
    gateway_metrics.ended(EndedTask(model="m", finish="eos"))
    gateway_metrics.worker_lost("a", "m")
    gateway_metrics.dropped(2)
    gateway_metrics.of_model("m").ttft.observe(0.03)
    gateway_metrics.of_model("m").itl.observe(0.03)
    gateway_metrics.of_model("m").queue.observe(0.03)
    gateway_metrics.http_request("/v1/models", 200, 0.002)
    gateway_metrics.http_request("/v1/models", 404, 0.002)
    found = samples(gateway_metrics)
    assert found["llamapool_tasks_total", ("eos", "m")] == 1
    assert found["llamapool_worker_losses_total", ("m", "a")] == 1
    assert found["llamapool_late_messages_total", ()] == 2
    assert found["llamapool_time_to_first_token_seconds_bucket", ("0.02", "m")] == 0
    assert found["llamapool_time_to_first_token_seconds_bucket", ("0.04", "m")] == 1
    assert found["llamapool_time_to_first_token_seconds_count", ("m",)] == 1
    assert found["llamapool_inter_token_latency_seconds_count", ("m",)] == 1
    assert found["llamapool_queue_seconds_count", ("m",)] == 1
    assert found["llamapool_http_requests_total", ("/v1/models", "2xx")] == 1
    assert found["llamapool_http_requests_total", ("/v1/models", "4xx")] == 1
    assert found["llamapool_http_request_seconds_count", ("/v1/models",)] == 2
    assert found["llamapool_engine_decode_seconds_total", ("m", "a")] == 1.5
    assert found["llamapool_workers", ("m", "loading")] == 1
    assert found["llamapool_slots", ("m", "processing")] == 3
    assert found["llamapool_slots", ("m", "idle")] == 1
    assert found["llamapool_queue_tasks", ("m",)] == 5


def test_every_counter_of_an_engine_is_shown_for_its_worker() -> None:
    gateway_metrics = Metrics()
    stats: dict[str, dict[str, float]] = {
        "llamapool_engine_step_seconds_total": {"step_s": 1.0},
        "llamapool_engine_decode_seconds_total": {"decode_s": 2.0},
        "llamapool_engine_sample_seconds_total": {"sample_s": 3.0},
        "llamapool_engine_gap_seconds_total": {"gap_s": 4.0},
        "llamapool_prompt_tokens_total": {"n_prompt": 5},
        "llamapool_cached_tokens_total": {"n_cached": 6},
        "llamapool_predicted_tokens_total": {"n_predicted": 7},
        "llamapool_evicted_prompts_total": {"n_evicted": 8},
        "llamapool_restored_tokens_total": {"n_restored": 9},
        "llamapool_preempted_tasks_total": {"n_preempted": 10},
        "llamapool_worker_faults_total": {"n_faults": 10.5},
        "llamapool_cache_used_cells": {"n_kv_used": 11},
        "llamapool_cache_busy_cells": {"n_kv_busy": 10},
        "llamapool_cache_cells": {"n_kv": 12},
        "llamapool_cache_branches": {"n_branches": 13},
        "llamapool_cache_host_bytes": {"n_host_bytes": 14},
    }
    counted = Stats(**{k: v for row in stats.values() for k, v in row.items()})  # type: ignore[arg-type]
    gateway_metrics.record_stats("a", "m", 1, counted)
    found = samples(gateway_metrics)
    for name, row in stats.items():
        assert [found[name, ("m", "a")]] == list(row.values()), name


def test_counters_outlive_their_worker_and_the_state_of_its_cache_does_not() -> None:
    gateway_metrics = Metrics()
    gateway_metrics.record_stats(
        "a", "m", 1, Stats(n_evicted=3, n_restored=20, n_preempted=1, n_kv_used=50, n_kv=64)
    )
    gateway_metrics.record_stats("a", "m", 2, Stats(n_evicted=2, n_kv_used=8, n_kv=64))
    found = samples(gateway_metrics)
    assert found["llamapool_evicted_prompts_total", ("m", "a")] == 5
    assert found["llamapool_restored_tokens_total", ("m", "a")] == 20
    assert found["llamapool_preempted_tasks_total", ("m", "a")] == 1
    assert found["llamapool_cache_used_cells", ("m", "a")] == 8


def test_the_longest_waits_for_the_main_thread_of_a_worker_are_counted() -> None:
    gateway_metrics = Metrics()
    for lag_s in (0.002, 0.02, 0.3):
        gateway_metrics.record_stats("a", "m", 1, Stats(link_lag_s=lag_s))
    found = samples(gateway_metrics)
    name = "llamapool_link_loop_lag_seconds"
    counts = [found[f"{name}_bucket", (le, "m", "a")] for le in ("0.001", "0.0025", "0.25", "0.5")]
    assert counts == [0, 1, 2, 3]
    assert found[f"{name}_count", ("m", "a")] == 3


def test_two_gateways_in_one_process_share_nothing() -> None:
    gateway_metrics, other = Metrics(), Metrics()
    gateway_metrics.ended(EndedTask(model="m", finish="eos"))
    assert ("llamapool_tasks_total", ("eos", "m")) not in samples(other)


@pytest.mark.parametrize(("seconds", "bucket"), [(0.5, "1"), (1.0, "1"), (1.5, "2"), (9.0, "inf")])
def test_a_duration_falls_into_the_bucket_that_holds_it(seconds: float, bucket: str) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(seconds, 3)
    counts = {f"{bound:g}": n for bound, n in histogram.cumulative()}
    names = list(counts)
    assert counts[bucket] == 3
    assert all(counts[name] == 0 for name in names[: names.index(bucket)])


def test_every_metric_is_on_its_page() -> None:
    metrics = Metrics()
    metrics.record_stats("w", "m", 1, Stats(accepted_at=(1,), n_drafts=1))
    page = (ROOT / "docs" / "running" / "metrics.md").read_text(encoding="utf-8")
    text = scraped(metrics, _NoWorkers())
    families = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    named = set(re.findall(r"^\| `((?:llamapool_|llamacpp:|vllm:)\w+)`", page, re.MULTILINE))
    assert named == families


class _NoWorkers:
    """A pool without workers, as `Metrics.render` asks for one."""

    def workers(self) -> tuple[WorkerView, ...]:
        return ()

    def queue_depths(self) -> Mapping[str, int]:
        return {}

    def n_quarantined(self) -> int:
        return 0

    def tasks_of_keys(self) -> Mapping[str, tuple[int, int]]:
        return {}
