"""The fields that all dialects share: their tables, their bounds, and their readers.

Imported by the dialects; imports none of them.
"""
