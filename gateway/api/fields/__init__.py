"""Request fields that all dialects share: their tables, bounds and readers.

Imported by the dialects; imports none of them.
"""
