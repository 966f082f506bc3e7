"""The loads that are compared. Their texts are words drawn from a seed, tuned to nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.compare.servers import Memory
from gateway.bench.client.dialects import BenchEndpoint
from gateway.bench.drive import BenchLoad
from gateway.bench.lengths import Lengths
from gateway.bench.plan import LoadShape
from gateway.bench.summary import Distribution, Summary

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one server did under one workload."""

    load: Summary
    background: Summary
    n_new: int = 0
    """Prompt tokens that had to be computed, by `fresh.py`; 0 if they were not counted."""
    n_computed: int = 0
    """Prompt tokens that were, by the server's metrics."""
    memory: Memory = field(default_factory=lambda: Memory(0.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One load, and what is looked at in it."""

    name: str
    title: str
    shape: LoadShape = LoadShape()
    load: BenchLoad = BenchLoad()
    waves: int = 1
    """Times that the load is run, with other texts, its figures over all of them."""
    endpoint: BenchEndpoint = BenchEndpoint.CHAT
    stream: bool = True
    slots: int = 0
    """0 is the slots of the command line; the context grows with them."""
    extra: tuple[str, ...] = ()
    workers: int = 1
    counts_new: bool = False
    needs_to_be_alone: bool = False
    """Whether another server on the machine changes what is measured."""
    must_be_named: bool = False
    """Whether it takes so long that it runs only if it is asked for."""
    figures: Callable[[Measured], Figures]


def fixed(n: int) -> Lengths:
    """Return the one length."""
    return Lengths(n, n)


def ms(distribution: Distribution | None, name: str) -> float:
    """Return a figure of a distribution; 0 if there was nothing to measure."""
    return float(getattr(distribution, name)) if distribution else 0.0


def _decode(found: Measured) -> Figures:
    tpot_ms = ms(found.load.tpot_ms, "mean")
    return {"decode_tokens_per_s": 1000 / tpot_ms if tpot_ms else 0.0}


def _streams(found: Measured) -> Figures:
    ttft = found.load.ttft_ms
    return {
        "tokens_per_s": found.load.output_tokens_per_s,
        "ttft_p50_ms": ms(ttft, "p50"),
        "ttft_p99_ms": ms(ttft, "p99"),
        "itl_p99_ms": ms(found.load.itl_ms, "p99"),
    }


def _cached(found: Measured) -> Figures:
    share = found.n_computed / found.n_new if found.n_new else 0.0
    return {**_streams(found), "computed_per_new": share}


def _mixed(found: Measured) -> Figures:
    return {
        "itl_p99_ms": ms(found.background.itl_ms, "p99"),
        "itl_max_ms": ms(found.background.itl_ms, "max"),
        "ttft_p50_ms": ms(found.load.ttft_ms, "p50"),
        "tokens_per_s": found.background.output_tokens_per_s,
    }


def _requests(found: Measured) -> Figures:
    return {
        "requests_per_s": found.load.requests_per_s,
        "e2e_p99_ms": ms(found.load.e2e_ms, "p99"),
    }


def _inputs(found: Measured) -> Figures:
    return {"inputs_per_s": found.load.inputs_per_s}


def _memory(found: Measured) -> Figures:
    return {"pss_mb": found.memory.pss_mb, "rss_mb": found.memory.rss_mb}


WORKLOADS = (
    Workload(
        name="one-stream",
        title="one stream",
        shape=LoadShape(prompt=fixed(64), output=fixed(128)),
        load=BenchLoad(requests=4),
        figures=_decode,
    ),
    Workload(
        name="streams",
        title="8 streams, distinct prompts",
        shape=LoadShape(prompt=fixed(160), output=fixed(64)),
        load=BenchLoad(concurrency=8, requests=8),
        waves=3,
        figures=_streams,
    ),
    Workload(
        name="shared-600",
        title="24 chats, shared 600-token system prompt, concurrency 8",
        shape=LoadShape(prompt=Lengths(16, 48), output=Lengths(24, 56), shared_prefix=600),
        load=BenchLoad(concurrency=8, requests=24),
        counts_new=True,
        figures=_cached,
    ),
    Workload(
        name="shared-1500",
        title="48 chats, shared 1,500-token system prompt, 16 slots, concurrency 16",
        shape=LoadShape(prompt=Lengths(16, 48), output=Lengths(24, 56), shared_prefix=1500),
        load=BenchLoad(concurrency=16, requests=48),
        slots=16,
        counts_new=True,
        figures=_cached,
    ),
    Workload(
        name="conversations",
        title="8 conversations x 6 turns",
        shape=LoadShape(prompt=Lengths(24, 96), output=Lengths(24, 56), turns=6),
        load=BenchLoad(concurrency=8, requests=8),
        counts_new=True,
        figures=_cached,
    ),
    Workload(
        name="mixed",
        title="4 decoding streams while 1,200-token prompts arrive",
        shape=LoadShape(prompt=fixed(1200), output=fixed(16)),
        load=BenchLoad(requests=4, background=4, background_tokens=1024),
        figures=_mixed,
    ),
    Workload(
        name="long",
        title="8 prompts of 1,500 words of their own at once, a cache for each slot",
        shape=LoadShape(prompt=fixed(1500), output=fixed(64)),
        load=BenchLoad(concurrency=8, requests=8),
        extra=("--no-kv-unified",),
        must_be_named=True,
        figures=_streams,
    ),
    Workload(
        name="unary",
        title="60 tiny unary requests, concurrency 4",
        shape=LoadShape(prompt=Lengths(4, 12), output=Lengths(2, 8)),
        load=BenchLoad(concurrency=4, requests=60),
        stream=False,
        figures=_requests,
    ),
    Workload(
        name="embeddings",
        title="embeddings, batches of 32",
        shape=LoadShape(prompt=Lengths(1, 128, 16, 0.6), batch=32),
        load=BenchLoad(concurrency=2, requests=6),
        endpoint=BenchEndpoint.EMBEDDINGS,
        extra=("--embeddings", "--pooling", "mean"),
        figures=_inputs,
    ),
    Workload(
        name="memory",
        title="resident memory, 2 workers on one model against one llama-server",
        shape=LoadShape(prompt=fixed(64), output=fixed(16)),
        load=BenchLoad(concurrency=8, requests=16),
        workers=2,
        needs_to_be_alone=True,  # two servers share the pages of the weights
        figures=_memory,
    ),
)
