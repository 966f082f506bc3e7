"""`llamapool doctor`: finds what prevents this host from serving, and how to fix it.

`probe.py` and child processes with a time limit read facts; pure functions, one module a subject,
judge them. Nothing here may crash or hang.
"""
