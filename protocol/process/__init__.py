"""Communication of processes on one host: control channel, readiness, logs, parent's death.

Imported by both sides.
"""
