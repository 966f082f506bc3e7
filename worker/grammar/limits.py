"""Limits of a schema, and of its grammar.

Everything that recurses or multiplies in the converter is bounded by one of these, so that no
schema can occupy a preparation thread of the worker for long.
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
"""Maximum length of a property name beside `additionalProperties`: a parenthesis a character."""

MAX_COUNT = 2000
"""Maximum repetitions in llama.cpp's grammar parser; more are written as several groups."""

MAX_MANY = 1_000_000
"""Maximum upper bound of repetitions; a larger one counts as none: no text becomes so long."""


class SchemaError(ValueError):
    """The schema cannot be converted to a grammar; the message has the place and the reason."""
