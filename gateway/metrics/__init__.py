"""What `GET /metrics` says, and the counters behind it.

Imported by whoever counts: the pool, the routes, the server.
"""
