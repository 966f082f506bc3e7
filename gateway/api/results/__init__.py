"""JSON values that the answers of several dialects hold.

Imported by the dialects; imports none of them.
"""
