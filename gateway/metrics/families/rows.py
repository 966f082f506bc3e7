"""Counts and histograms as the families of prometheus-client."""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.metrics.counters import Histogram


def labelled(
    family: CounterMetricFamily | GaugeMetricFamily, rows: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    """Fill a family with its rows."""
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def histograms(
    name: str, text: str, label: str, rows: Mapping[str, Histogram]
) -> HistogramMetricFamily:
    """Make a family of histograms, one for each value of a label."""
    family = HistogramMetricFamily(name, text, labels=(label,))
    for value, histogram in rows.items():
        family.add_metric((value,), buckets=histogram.buckets(), sum_value=histogram.total_s)
    return family
