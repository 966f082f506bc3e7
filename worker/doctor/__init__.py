"""`llamapool doctor`: finds what keeps this host from serving, and tells how to fix it.

`probe.py` and child processes with a time limit read facts; pure functions, one module a subject,
judge them. Nothing here may crash or hang.
"""
