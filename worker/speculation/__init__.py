"""Which drafters a configuration asks for.

Imported by the engine's thread and the settings.
"""
