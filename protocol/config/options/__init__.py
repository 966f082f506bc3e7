"""llama-server's options and environment names as tables; the command line is made from them.

Anybody may import `table` and `option`; the other modules are its parts.
"""
