"""Request bodies: read within limits, parsed, and what is left of them after an early answer.

Imported by the middlewares and the endpoints.
"""
