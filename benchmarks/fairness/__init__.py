"""What nine normal keys notice of a tenth that floods the pool: `python -m benchmarks.fairness`."""
