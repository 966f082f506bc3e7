"""Which rows the next step computes, and who gets a slot.

Imported by the engine alone.
"""
