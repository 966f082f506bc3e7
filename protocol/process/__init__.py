"""What processes of one host say to each other: control channel, readiness, logs, death.

Imported by both sides.
"""
