"""`llamapool doctor`: what keeps this host from serving, and how to mend it.

Facts are read by `probe.py` and by children with a time limit; what they mean is decided by pure
functions, a module a subject. Nothing here may crash or hang.
"""
