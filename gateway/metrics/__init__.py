"""The text of `GET /metrics`, and the counters behind it.

Imported by the pool, the routes and the server, which count.
"""
