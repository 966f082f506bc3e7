"""GBNF grammars without llama.cpp: reading them, and which tokens may come next, within bounds.

Used by `worker.llama.sampling.sampler` and by tests. It knows bytes and token ids, no model and no
wire.
"""
