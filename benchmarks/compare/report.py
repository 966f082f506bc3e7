"""The results as a Markdown table."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.compare.limits import By, Values, Verdict, verdicts
from benchmarks.compare.servers import Side
from benchmarks.compare.workloads import WORKLOADS

_TITLES = {workload.name: workload.title for workload in WORKLOADS}


def markdown(document: Mapping[str, Any]) -> str:
    """Write the whole report."""
    results = document["results"]
    lines = [*_about(document), "", *_table(verdicts(values_of(results)))]
    if failures := [*_failures(results)]:
        lines += ["", *failures]
    return "\n".join(lines)


def values_of(results: Iterable[Mapping[str, Any]]) -> Values:
    """Sort the figures of all runs by what they are of."""
    found: dict[tuple[str, Side, str], list[float]] = defaultdict(list)
    for result in results:
        for figure, value in result["figures"].items():
            found[result["workload"], Side(result["side"]), figure].append(value)
    return found


def _about(document: Mapping[str, Any]) -> Iterable[str]:
    for part in ("machine", "versions", "settings"):
        yield f"- {part}: " + ", ".join(f"{k} {v}" for k, v in document[part].items())


def _table(found: Iterable[Verdict]) -> Iterable[str]:
    yield "| workload | figure | llamapool | llama-server | value | must | |"
    yield "|---|---|---|---|---|---|---|"
    for one in found:
        title = _TITLES[one.limit.workload]
        yield (
            f"| {title} | {one.limit.title} | {_number(one.ours)} | {_number(one.theirs)} "
            f"| {_value(one)} | {one.must} | {'ok' if one.is_met else 'MISS'} |"
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _value(one: Verdict) -> str:
    return f"{one.value:+.0f}" if one.limit.by is By.DIFFERENCE else f"{one.value:.2f}"


def _failures(results: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Name runs in which requests failed: their figures are worth nothing."""
    for result in results:
        errors = result["details"]["load"]["errors"] | result["details"]["background"]["errors"]
        if errors:
            yield (
                f"- **{result['workload']} on {result['side']}, round {result['round']}: "
                f"failed requests** {errors}"
            )
