"""llama-server's options and environment names as tables; the command line is made from them.

Anybody may import `table`, `option` and `argument_readers`; the other modules have the rows.
"""
