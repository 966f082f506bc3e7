"""`llamapool serve`: starts, watches and replaces the gateway and the workers.

Imported by the command line; it must start at once, so it imports no library.
"""
