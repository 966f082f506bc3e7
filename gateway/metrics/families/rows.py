"""Counts and histograms as lines of Prometheus' text format.

prometheus-client takes 10 us a line: 70 ms with 256 workers, in which no stream would go on. These
lines are those of its format 0.0.4 and take 0.5 us each; its parser reads them in the tests.
"""

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TypeVar

from gateway.metrics.counters import Histogram

_MOST_DIGITS = 6
"""Before the point. Go writes larger numbers with an exponent, Python only those above 1e16."""
_OTHERS = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
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


def counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> str:
    """Write a family of counters; the name ends with `_total`."""
    return _family(name, text, "counter", labels, rows)


def gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> str:
    """Write a family of gauges."""
    return _family(name, text, "gauge", labels, rows)


def histograms(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Histogram]],
    bounds: Sequence[float] = (),
) -> str:
    """Write a family of histograms; with `bounds`, only the buckets of these bounds."""
    wanted = {*bounds, float("inf")} if bounds else None
    lines = [_head(name, text, "histogram")]
    for values, histogram in rows:
        pairs = _pairs(labels, values)
        prefix = f"{name}_bucket{{{pairs}{',' if pairs else ''}le="
        n = 0
        for bound, n in histogram.cumulative():
            if wanted is None or bound in wanted:
                lines.append(f'{prefix}"{_le(bound)}"}} {n}.0\n')
        suffix = f"{{{pairs}}}" if pairs else ""
        lines.append(f"{name}_sum{suffix} {_number(histogram.total)}\n{name}_count{suffix} {n}.0\n")
    return "".join(lines)


def _family(name: str, text: str, kind: str, labels: Sequence[str], rows: Rows) -> str:
    lines = [_head(name, text, kind)]
    for values, value in rows:
        pairs = _pairs(labels, values)
        where = f"{{{pairs}}}" if pairs else ""
        lines.append(f"{name}{where} {_number(value)}\n")
    return "".join(lines)


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _pairs(labels: Sequence[str], values: Sequence[str]) -> str:
    return _joined(tuple(labels), tuple(values))


@lru_cache(maxsize=4096)  # a row of a worker has the same labels in sixteen families
def _joined(labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join([f'{a}="{_escaped(b)}"' for a, b in zip(labels, values, strict=True)])


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def _number(value: float) -> str:
    return f"{value}.0" if isinstance(value, int) else _text(value)


def _text(value: float) -> str:
    """Write a number as prometheus-client does: Prometheus tells `1.0` from `1` as a label."""
    text = repr(float(value))
    n_digits = text.find(".")
    if n_digits > _MOST_DIGITS and value > 0:
        fraction = text[1:].replace(".", "")
        return f"{text[0]}.{fraction}".rstrip("0.") + f"e+{n_digits - 1:02d}"
    return _OTHERS.get(text, text)


_le = cache(_text)
