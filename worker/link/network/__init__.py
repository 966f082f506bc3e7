"""How a worker reaches its gateways: options of the socket, keys, waits between attempts.

Imported by `worker.link.connection` and `worker.process`.
"""
