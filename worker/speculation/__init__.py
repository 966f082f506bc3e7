"""Which drafters of speculative decoding a configuration asks for, and the file of n-grams.

`worker/drafting.py` opens them. Imported by that, the settings and `worker/llama/`.
"""
