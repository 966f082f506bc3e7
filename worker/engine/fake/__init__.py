"""A deterministic backend without a model, for tests and for trying a pool.

Imported by the engine's thread and by tests.
"""
