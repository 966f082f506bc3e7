"""The gateways of a worker: connections, keys, credits, messages, and succession.

Imported by `worker.link.link` and `worker.process`.
"""
