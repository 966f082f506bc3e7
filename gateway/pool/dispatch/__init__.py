"""Every decision of the pool over its tasks and workers; pure, without I/O.

Imported by the transport, the pool and what looks at its workers.
"""
