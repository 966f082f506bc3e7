"""Tokens proposed ahead of the model, by a draft model or from earlier text. Pure.

Imported by the engine, and by `worker/speculation`, which chooses.
"""
