"""The families of `GET /metrics`, a file for each subject; `gateway/metrics/page.py` lists them.

Imported by `gateway.metrics.page` alone.
"""
