"""The gateways of a worker: connections, keys, credits, what they say, and how they come and go.

Imported by `worker.link.link` and `worker.process`.
"""
