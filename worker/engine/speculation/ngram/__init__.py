"""Further drafters without a model: llama.cpp's ngram-map and ngram-mod.

Pure; only `worker.drafting` imports it.
"""
