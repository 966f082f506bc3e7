"""Reads the text of a scrape as Prometheus does."""

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.metrics import Metrics
from gateway.metrics.page import families, of_llama_server, write
from gateway.metrics.view import PoolView

Samples = dict[tuple[str, tuple[str, ...]], float]


def scraped(metrics: Metrics, view: PoolView) -> str:
    """Return what a scrape reads."""
    return write(of_llama_server(metrics, view), families(metrics, view)).decode()


def read_samples(text: str) -> Samples:
    """Return every sample by its name and the values of its labels in the order of their names."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(value for _, value in sorted(sample.labels.items()))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found
