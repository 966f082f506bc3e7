"""Which workers hold which blocks of prompts, in little memory. Pure.

Imported by the routing alone.
"""
