"""Formats the figures of a run as a table for people."""

from collections.abc import Iterable

from gateway.bench.summary import Distribution, Slo, Summary

_COLUMNS = ("mean", "min", "p50", "p90", "p95", "p99", "max")
_SPREADS = (
    ("TTFT ms", "ttft_ms", 1),
    ("ITL ms", "itl_ms", 1),
    ("TPOT ms", "tpot_ms", 1),
    ("E2E ms", "e2e_ms", 1),
    ("prompt tokens", "prompt_tokens", 0),
    ("output tokens", "output_tokens", 0),
)


def table(summary: Summary, slo: Slo) -> str:
    """Return totals, then distributions."""
    return "\n".join([*_totals(summary, slo), "", *_spreads(summary)])


def _totals(summary: Summary, slo: Slo) -> Iterable[str]:
    failed = "".join(f", {n} {kind}" for kind, n in sorted(summary.errors.items()))
    cut = f", {summary.n_cut} cut" if summary.n_cut else ""
    yield _row("requests", f"{summary.n_ok} ok{failed}{cut} in {summary.duration_s:.2f} s")
    yield _row("requests/s", f"{summary.requests_per_s:.2f}")
    if summary.inputs_per_s != summary.requests_per_s:
        yield _row("inputs/s", f"{summary.inputs_per_s:.2f}")
    if summary.n_output:
        yield _row("output tokens/s", f"{summary.output_tokens_per_s:.1f}")
    if summary.n_prompt:
        yield _row("input tokens/s", f"{summary.input_tokens_per_s:.1f}")
        yield _row("prompt tokens", _prompt(summary))
    if slo:
        share = summary.n_good / max(1, summary.n_ok + summary.n_failed)
        yield _row("goodput", f"{summary.goodput_per_s:.2f} requests/s, {share:.0%} good")


def _prompt(summary: Summary) -> str:
    counts = ((summary.n_cached, "cached"), (summary.n_computed, "computed"))
    return f"{summary.n_prompt:,}" + "".join(f", {n:,} {what}" for n, what in counts if n >= 0)


def _row(name: str, value: str) -> str:
    return f"{name:<16}{value}"


def _spreads(summary: Summary) -> Iterable[str]:
    yield f"{'':<16}" + "".join(f"{name:>10}" for name in _COLUMNS)
    for name, field, digits in _SPREADS:
        values: Distribution | None = getattr(summary, field)
        if values is not None:
            yield f"{name:<16}" + "".join(
                f"{getattr(values, column):>10,.{digits}f}" for column in _COLUMNS
            )
