"""Counts and histograms as families of prometheus-client, which writes them."""

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.utils import floatToGoString

from gateway.metrics.counters import Histogram

Rows = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the value."""

K = TypeVar("K", bound=Hashable)
MAX_DEPARTED = 64
"""Workers that are gone and still have rows of their own."""


def by_worker(
    rows: Mapping[tuple[str, str], Mapping[K, float]], present: Container[str]
) -> dict[tuple[str, str], Mapping[K, float]]:
    """Return rows by worker and model in which old workers share one row of each model.

    Pods and workers on demand come with ever new names. The rows of all but the `MAX_DEPARTED`
    newest of those that are not `present` are added up under the worker name "", so that sums over
    the workers never fall and the page does not grow. `rows` have what was heard last at the end:
    a worker that starts again is not taken for an old one meanwhile, or the common row would fall.
    """
    departed = [key for key in rows if key[0] not in present]
    old = set(departed[: max(0, len(departed) - MAX_DEPARTED)])
    together: dict[str, Counter[K]] = {}
    for key in old:
        together.setdefault(key[1], Counter()).update(rows[key])
    shown = {key: row for key, row in rows.items() if key not in old}
    return {**{("", model): row for model, row in sorted(together.items())}, **shown}


def counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    """Return a family of counters; the name ends with `_total`."""
    return _family(Metric(name.removesuffix("_total"), text, "counter"), name, labels, rows)


def gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    """Return a family of gauges."""
    return _family(Metric(name, text, "gauge"), name, labels, rows)


def histograms(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Histogram]],
    bounds: Sequence[float] = (),
) -> Metric:
    """Return a family of histograms; with `bounds`, only the buckets of these bounds."""
    wanted = {*bounds, float("inf")} if bounds else None
    family = Metric(name, text, "histogram")
    for values, histogram in rows:
        pairs = dict(zip(labels, values, strict=True))
        n = 0
        for bound, n in histogram.cumulative():
            if wanted is None or bound in wanted:
                family.add_sample(f"{name}_bucket", pairs | {"le": _go(bound)}, n)
        family.add_sample(f"{name}_sum", pairs, histogram.total)
        family.add_sample(f"{name}_count", pairs, n)
    return family


def _go(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]  # the library's
    return text


def _family(family: Metric, name: str, labels: Sequence[str], rows: Rows) -> Metric:
    for values, value in rows:
        family.add_sample(name, dict(zip(labels, values, strict=True)), value)
    return family
