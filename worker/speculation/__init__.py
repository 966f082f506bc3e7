"""The drafters of speculative decoding, as configured.

Imported by the engine's thread and the settings.
"""
