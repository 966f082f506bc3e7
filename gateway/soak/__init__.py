"""`llamapool soak`: loads a pool of its own, injects faults, and accounts for every request.

A client of the pool's processes: it starts `llamapool serve` and imports nothing of the gateway.
"""
