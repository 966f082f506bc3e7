"""The endpoints under `/admin/`, and `/v1/usage`: workers, requests and usage, for operators.

Imported by `gateway/app.py` alone. Those of several gateways ask their siblings.
"""
