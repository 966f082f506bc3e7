"""Reads the text of a scrape as Prometheus does."""

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[str, ...]], float]


def read_samples(text: str) -> Samples:
    """Return every sample by its name and the values of its labels in the order of their names."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(value for _, value in sorted(sample.labels.items()))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found
