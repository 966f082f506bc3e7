"""Which rows the next step computes, and who gets a slot. Pure.

Imported by the engine alone.
"""
