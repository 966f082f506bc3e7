"""llama.cpp's sampler chain, grammars and reasoning budgets, and the fast ways around them.

Imported by `worker/llama/backend.py` alone.
"""
