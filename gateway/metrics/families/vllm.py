"""vLLM's metrics, name for name, with its labels and buckets, for what holds here too.

Source of names, texts and bounds: vllm/v1/metrics/loggers.py of vLLM 0.11 to 0.14, and its
documents for the names that 0.11 has renamed (`gpu_cache_usage_perc`,
`time_per_output_token_seconds`). The whole pool of a model is one engine, number 0. The endpoint
picker of Kubernetes' Gateway API inference extension reads the gauges.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric

from gateway.metrics.counters import VLLM_ITL_S, ModelLatencies
from gateway.metrics.families.rows import counter, gauge, histograms
from gateway.metrics.metrics import Metrics
from gateway.metrics.view import PoolView

_LABELS = ("model_name", "engine")
_ENGINE = "0"

_SECONDS = (
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", "ttft"),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", "itl"),
    (
        "time_per_output_token_seconds",
        "Histogram of time per output token in seconds."
        "DEPRECATED: Use vllm:inter_token_latency_seconds instead.",
        "itl",
    ),
    (
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        "tpot",
    ),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", "e2e"),
    (
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        "waiting",
    ),
    (
        "request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        "inference",
    ),
    (
        "request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        "prefill",
    ),
    (
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        "decode",
    ),
)
_TOKENS = (
    ("request_prompt_tokens", "Number of prefill tokens processed.", "n_prompt"),
    ("request_generation_tokens", "Number of generation tokens processed.", "n_predicted"),
    ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", "n_max"),
)
_OF_REQUESTS = (
    ("prompt_tokens_total", "Number of prefill tokens processed.", "n_prompt"),
    (
        "prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        "n_prompt",
    ),
    (
        "prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        "n_cached",
    ),
)
_OF_WORKERS = (
    ("generation_tokens_total", "Number of generation tokens processed.", "n_predicted"),
    ("num_preemptions_total", "Cumulative number of preemption from the engine.", "n_preempted"),
)
_OF_DRAFTS = (
    ("spec_decode_num_drafts_total", "Number of spec decoding drafts.", "n_drafts"),
    ("spec_decode_num_draft_tokens_total", "Number of draft tokens.", "n_draft"),
    ("spec_decode_num_accepted_tokens_total", "Number of accepted tokens.", "n_draft_accepted"),
)
_REASONS = {"eos": "stop", "word": "stop", "none": "stop", "limit": "length", "cancelled": "abort"}
"""vLLM's reasons by ours; all others are errors."""


def of_vllm(metrics: Metrics, view: PoolView) -> Iterator[Metric]:
    """Write the metrics of all models."""
    depths = view.queue_depths()
    yield from _gauges(metrics, view, depths)
    models = {name: metrics.latencies.get(name) or ModelLatencies() for name in depths}
    models |= metrics.latencies
    yield from _requests(metrics, models)
    yield from _engines(metrics, models)
    for name, text, source in _SECONDS:
        bounds = VLLM_ITL_S if source == "itl" else ()
        rows = [(_of(model), getattr(latencies, source)) for model, latencies in models.items()]
        yield histograms(f"vllm:{name}", text, _LABELS, rows, bounds)
    for name, text, source in _TOKENS:
        rows = [(_of(model), getattr(latencies, source)) for model, latencies in models.items()]
        yield histograms(f"vllm:{name}", text, _LABELS, rows)


def _of(model: str) -> tuple[str, str]:
    return model, _ENGINE


def _gauges(metrics: Metrics, view: PoolView, depths: Mapping[str, int]) -> Iterator[Metric]:
    running = Counter(dict.fromkeys(depths, 0))
    busy, cells = running.copy(), running.copy()
    for worker in view.workers():
        latest = metrics.stats.latest(worker.name)
        running[worker.model] += worker.n_busy
        # The latest heartbeat of a worker may be older than the end of its last task.
        busy[worker.model] += latest.n_kv_busy if worker.n_busy else 0
        cells[worker.model] += latest.n_kv
    usage = {model: busy[model] / n if n else 0.0 for model, n in cells.items()}
    for name, text, values in (
        ("num_requests_running", "Number of requests in model execution batches.", running),
        ("num_requests_waiting", "Number of requests waiting to be processed.", depths),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage),
        ("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", usage),
    ):
        yield gauge(f"vllm:{name}", text, _LABELS, _rows(values))


def _rows(values: Mapping[str, float]) -> Iterable[tuple[tuple[str, str], float]]:
    return [(_of(model), value) for model, value in values.items()]


def _requests(metrics: Metrics, models: Mapping[str, ModelLatencies]) -> Iterator[Metric]:
    for name, text, source in _OF_REQUESTS:
        totals = {
            model: int(getattr(latencies, source).total) for model, latencies in models.items()
        }
        yield counter(f"vllm:{name}", text, _LABELS, _rows(totals))
    reasons = (*dict.fromkeys(_REASONS.values()), "error")
    ends = Counter({(model, _ENGINE, reason): 0 for model in models for reason in reasons})
    for (model, finish), n in metrics.tasks.items():
        ends[model, _ENGINE, _REASONS.get(finish, "error")] += n
    yield counter(
        "vllm:request_success_total",
        "Count of successfully processed requests.",
        (*_LABELS, "finished_reason"),
        ends.items(),
    )


def _engines(metrics: Metrics, models: Mapping[str, ModelLatencies]) -> Iterator[Metric]:
    sums: dict[str, Counter[str]] = {model: Counter() for model in models}
    for (_, model), row in metrics.stats.sums().items():
        sums.setdefault(model, Counter()).update(row)
    drafting = {model: row for model, row in sums.items() if row["n_drafts"]}
    families = [(family, sums) for family in _OF_WORKERS] + [
        (family, drafting) for family in _OF_DRAFTS
    ]
    for (name, text, source), rows in families:
        if rows:
            values = {model: row[source] for model, row in rows.items()}
            yield counter(f"vllm:{name}", text, _LABELS, _rows(values))
