"""Limits of a schema, and of its grammar.

Everything that recurses or multiplies in the converter is bounded by one of these, so that no
schema can hold up the worker's link, which converts between two heartbeats.
"""

MAX_SCHEMA_CHARS = 512 * 1024
MAX_DEPTH = 100
"""Levels of a schema, followed through its references; a level costs some five Python frames."""

MAX_NODES = 10_000
"""Sub-schemas after references and lists of types are multiplied out."""

MAX_RULES = 10_000
MAX_GRAMMAR_CHARS = 512 * 1024
MAX_PATTERN_CHARS = 2048
MAX_PATTERN_DEPTH = 100
"""Nested groups of a pattern; llama.cpp's own limit."""

MAX_EXCLUDED_CHARS = 128
"""Length of a property name that `additionalProperties` must not repeat: a parenthesis each."""

MAX_COUNT = 2000
"""Repetitions that llama.cpp's grammar parser takes; more are written by the thousand."""

MAX_MANY = 1_000_000
"""Repetitions in all; a larger upper bound is none, as no text becomes that long."""


class SchemaError(ValueError):
    """The schema cannot be converted to a grammar; the message has the place and the reason."""
