"""The configuration: its keys, their bounds, and the options that set them.

Imported by both sides; imports nothing of the wire but the parameter table.
"""
