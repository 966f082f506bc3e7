"""One flooding key beside nine normal ones: `python -m benchmarks.fairness`."""
