"""Tokens proposed ahead of the model, by a draft model or by what was seen before. Pure.

Imported by the engine, and by `worker/speculation`, which chooses.
"""
