"""llama.cpp's sampler chain, grammars and reasoning budgets, and faster equivalents.

Imported by `worker/llama/backend.py` alone.
"""
