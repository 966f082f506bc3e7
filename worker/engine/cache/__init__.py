"""The prefix cache: which sequence holds which tokens, who shares them, what leaves first.

Imported by the engine alone.
"""
