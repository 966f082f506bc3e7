"""Hostile requests, sent to a real pool while ordinary streams run beside them.

`corpus/` says what is sent, `attack.py` sends it, `neighbours.py` streams meanwhile and
`health.py` looks at the processes. `python -m tests.hostile` sends all of it and prints counts.
"""
