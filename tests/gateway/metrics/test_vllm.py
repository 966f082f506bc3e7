"""vLLM's names, as its dashboards, scalers and endpoint pickers read them."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from protocol.wire import messages as m
from tests.fakes.echo import FakeOptions
from tests.gateway.inprocess import Running, running, until
from tests.gateway.metrics.samples import Samples, read_samples

FAKE = ("0", "fake")
BODY = {"prompt": "one two three four", "n_predict": 6, "ignore_eos": True}

# As `prometheus_client` of vLLM prints them (vllm/v1/metrics/loggers.py).
ITL = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 +Inf"
TTFT = (
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 "
    "160.0 640.0 2560.0 +Inf"
)
REQUEST = (
    "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 "
    "1920.0 7680.0 +Inf"
)
HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT,
    "inter_token_latency_seconds": ITL,
    "time_per_output_token_seconds": ITL,
    "request_time_per_output_token_seconds": ITL,
    "e2e_request_latency_seconds": REQUEST,
    "request_queue_time_seconds": REQUEST,
    "request_inference_time_seconds": REQUEST,
    "request_prefill_time_seconds": REQUEST,
    "request_decode_time_seconds": REQUEST,
}
GAUGES = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    "gpu_cache_usage_perc",
)
COUNTERS = (
    *("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"),
    *("num_preemptions", "request_success"),
)


async def scrape(gateway: Running) -> Samples:
    return read_samples((await gateway.client.get("/metrics")).text)


async def test_every_family_has_vllms_type_labels_and_buckets(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        await gateway.add_worker()
        await gateway.post("/completion", BODY)
        text = (await gateway.client.get("/metrics")).text
    families = {one.name: one for one in text_string_to_metric_families(text)}
    for name in GAUGES:
        assert families[f"vllm:{name}"].type == "gauge"
    for name in COUNTERS:
        assert families[f"vllm:{name}"].type == "counter"
    for name, bounds in HISTOGRAMS.items():
        family = families[f"vllm:{name}"]
        assert family.type == "histogram"
        buckets = [one.labels["le"] for one in family.samples if one.name.endswith("_bucket")]
        assert " ".join(buckets) == bounds, name
    for name, family in families.items():
        if name.startswith("vllm:"):
            extra = {"vllm:request_success": {"finished_reason"}}.get(name, set())
            wanted = {"model_name", "engine"} | extra
            assert all(set(one.labels) - {"le"} == wanted for one in family.samples), name


async def test_a_request_is_counted_with_its_tokens_and_times(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True, heartbeat_s=0.1) as gateway:
        worker = await gateway.add_worker()
        worker.engine.n_cached = 3
        await gateway.post("/completion", BODY)
        await worker.wait_heartbeats(2)
        found = await scrape(gateway)
    assert found["vllm:request_success_total", (*FAKE[:1], "length", "fake")] == 1
    assert found["vllm:request_success_total", ("0", "stop", "fake")] == 0
    n_prompt = found["vllm:prompt_tokens_total", FAKE]
    assert n_prompt == found["vllm:prefix_cache_queries_total", FAKE] > 3
    assert found["vllm:prefix_cache_hits_total", FAKE] == 3
    assert found["vllm:generation_tokens_total", FAKE] == 6
    assert found["vllm:request_prompt_tokens_sum", FAKE] == n_prompt
    assert found["vllm:request_generation_tokens_sum", FAKE] == 6
    assert found["vllm:request_params_max_tokens_sum", FAKE] == 6
    for name in HISTOGRAMS:
        n = 5 if name in ("inter_token_latency_seconds", "time_per_output_token_seconds") else 1
        assert found[f"vllm:{name}_count", FAKE] == n, name
    parts = ("queue", "prefill", "decode")
    sums = [found[f"vllm:request_{part}_time_seconds_sum", FAKE] for part in parts]
    assert all(one >= 0 for one in sums)
    assert sum(sums) <= found["vllm:e2e_request_latency_seconds_sum", FAKE]


async def test_the_gauges_show_what_runs_and_waits(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        slow = FakeOptions(n_slots=2, n_prefetch=0, free_running=False)
        worker = await gateway.add_worker(slow)
        asked = [asyncio.create_task(gateway.post("/completion", BODY)) for _ in range(5)]
        await until(lambda: sum(gateway.pool.status.queue_depths().values()) == 3)
        found = await scrape(gateway)
        assert found["vllm:num_requests_running", FAKE] == 2
        assert found["vllm:num_requests_waiting", FAKE] == 3
        assert found["llamapool_key_waiting_tasks", ("none",)] == 3
        assert found["llamapool_key_running_tasks", ("none",)] == 2
        while not all(one.done() for one in asked):
            await worker.step()
            await asyncio.sleep(0)
        found = await scrape(gateway)
        assert found["vllm:num_requests_running", FAKE] == 0
        assert found["vllm:num_requests_waiting", FAKE] == 0


async def test_an_answer_that_goes_on_elsewhere_is_one_request(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        doomed = await gateway.add_worker(FakeOptions(name="a", free_running=False))
        asked = asyncio.create_task(gateway.post("/completion", BODY))
        await doomed.got(m.Generate)
        await doomed.step(3)
        await until(lambda: gateway.metrics.of_model("fake").itl.n == 2)
        await gateway.add_worker(FakeOptions(name="b"))
        await doomed.die()
        assert (await asked).json()["tokens_predicted"] == 6
        found = await scrape(gateway)
    assert found["llamapool_continued_tasks_total", ("begun", "lost", "fake")] == 1
    for counted in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        assert found[f"vllm:{counted}_count", FAKE] == 1
    assert found["vllm:request_prompt_tokens_count", FAKE] == 1
    assert found["vllm:request_generation_tokens_sum", FAKE] == 6
    gap_s = found["llamapool_continued_gap_seconds_sum", ("fake",)]
    assert found["vllm:request_decode_time_seconds_sum", FAKE] >= gap_s > 0


async def test_a_client_that_leaves_is_an_abort_and_its_cancel_is_timed(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        worker = await gateway.add_worker(FakeOptions(free_running=False))
        asked = asyncio.create_task(gateway.post("/completion", BODY))
        await worker.got(m.Generate)
        await worker.step(2)
        asked.cancel()
        await worker.got(m.Cancel)
        await worker.step()
        await until(lambda: gateway.metrics.of_model("fake").cancel.n == 1)
        found = await scrape(gateway)
    assert found["vllm:request_success_total", ("0", "abort", "fake")] == 1
    assert found["llamapool_cancel_seconds_count", ("fake",)] == 1


async def test_a_task_that_is_not_taken_is_counted_by_its_error(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True, queue_size=1) as gateway:
        await gateway.add_worker(FakeOptions(n_slots=1, n_prefetch=0, free_running=False))
        asked = [asyncio.create_task(gateway.post("/completion", BODY)) for _ in range(4)]
        await until(lambda: sum(gateway.metrics.refusals.values()) > 0)
        found = await scrape(gateway)
        for one in asked:
            one.cancel()
    refused = {key: n for key, n in found.items() if key[0] == "llamapool_refused_tasks_total"}
    assert sum(refused.values()) == found["llamapool_key_refused_tasks_total", ("none",)] > 0
    assert found["llamapool_refused_tasks_total", ("overloaded", "fake")] > 0
    assert found["llamapool_decision_seconds_count", ("fake",)] == 4, "of all that came"


async def test_a_model_without_any_worker_has_none_that_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        worker = await gateway.add_worker()
        assert (await scrape(gateway))["llamapool_workers", ("fake", "ready")] == 1
        await worker.die()
        await until(lambda: not gateway.pool.status.workers())
        found = await scrape(gateway)
    assert found["llamapool_workers", ("fake", "ready")] == 0
    assert found["vllm:num_requests_running", FAKE] == 0


@pytest.mark.parametrize("place", ["tick", "loop", "message"])
async def test_a_fault_is_seen_to_grow_from_zero(tmp_path: Path, place: str) -> None:
    async with running(tmp_path, metrics=True) as gateway:
        assert (await scrape(gateway))["llamapool_gateway_faults_total", (place,)] == 0
        gateway.metrics.fault(place)
        assert (await scrape(gateway))["llamapool_gateway_faults_total", (place,)] == 1
