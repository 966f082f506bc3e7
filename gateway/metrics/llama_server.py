"""llama-server's own metrics, name for name and text for text, summed over the pool.

Written without the metrics library, which would rename them (`n_tokens_max` is no legal counter
name); clients parse them as plain `name value` lines without labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol.wire.facts import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of the pool at one scrape."""

    totals: Mapping[str, float]
    """`Stats` summed over all workers since the start."""
    window: Mapping[str, float]
    """The same since the last scrape."""
    latest: Sequence[Stats]
    """`Stats` of the connected workers, for values that are not sums."""
    n_processing: int
    n_deferred: int
    accepted_at: Sequence[int] = ()
    """Accepted draft tokens by position in the draft; empty before the first draft."""


def legacy_text(now: Snapshot) -> str:
    """Write the lines in llama-server's order."""
    n_kv_used = sum(stats.n_kv_used for stats in now.latest)
    gauges = {
        "prompt_tokens_seconds": _ratio(now.window["n_prompt"], now.window["prompt_s"]),
        "predicted_tokens_seconds": _ratio(now.window["n_predicted"], now.window["predicted_s"]),
        "requests_processing": now.n_processing,
        "requests_deferred": now.n_deferred,
        "n_busy_slots_per_decode": _ratio(now.totals["n_busy"], now.totals["n_decode"]),
        "kv_cache_usage_ratio": _ratio(n_kv_used, sum(stats.n_kv for stats in now.latest)),
        "kv_cache_tokens": n_kv_used,
    }
    lines: list[str] = []
    for name, text, source in _LLAMACPP_COUNTERS:
        lines += _lines(name, text, "counter", now.totals.get(source, 0))
    for name, text in _LLAMACPP_GAUGES:
        lines += _lines(name, text, "gauge", gauges[name])
    lines += _positions(now.accepted_at)
    return "\n".join(lines) + "\n"


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else 0


def _lines(name: str, text: str, kind: str, value: float) -> Iterable[str]:
    number = str(value) if isinstance(value, int) else f"{value:.10g}"
    full = f"llamacpp:{name}"
    return (f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {number}")


def _positions(accepted_at: Sequence[int]) -> Iterable[str]:
    """Write the only family with a label; as in llama-server, left out before the first draft."""
    if not accepted_at:
        return
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    yield f"# HELP {name} Accepted tokens per draft position"
    yield f"# TYPE {name} counter"
    for position, n in enumerate(accepted_at):
        yield f'{name}{{position="{position}"}} {n}'


_LLAMACPP_COUNTERS = (
    (
        "prompt_tokens_total",
        "Number of prompt tokens processed, excluding cached tokens",
        "n_prompt",
    ),
    ("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", "n_cached"),
    ("prompt_seconds_total", "Total time spent processing prompts", "prompt_s"),
    ("tokens_predicted_total", "Number of generation tokens processed", "n_predicted"),
    ("tokens_predicted_seconds_total", "Total time spent generating tokens", "predicted_s"),
    (
        "n_decode_total",
        "Total number of llama_decode() calls, excluding speculative decoding and multimodal "
        "decoding",
        "n_decode",
    ),
    # A high-water mark that llama-server types as a counter.
    ("n_tokens_max", "Largest observed sequence length (prompt + generation)", "n_tokens_max"),
    ("spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated", "n_draft"),
    (
        "spec_decode_num_accepted_tokens_total",
        "Speculative: Total draft tokens accepted by the target model",
        "n_draft_accepted",
    ),
    (
        "spec_decode_num_drafts_total",
        "Speculative: Total speculative decoding verification steps",
        "n_drafts",
    ),
)
_LLAMACPP_GAUGES = (
    ("prompt_tokens_seconds", "Average prompt throughput in tokens/s"),
    ("predicted_tokens_seconds", "Average generation throughput in tokens/s"),
    ("requests_processing", "Number of requests processing"),
    ("requests_deferred", "Number of requests deferred"),
    ("n_busy_slots_per_decode", "Average number of busy slots per llama_decode() call"),
    # Not in today's llama-server; the texts are those of 2024.
    ("kv_cache_usage_ratio", "KV-cache usage. 1 means 100 percent usage."),
    ("kv_cache_tokens", "KV-cache tokens."),
)
