"""From a JSON schema to GBNF, as llama.cpp's `json-schema-to-grammar` does it. Pure.

Imported by `worker/grammar` alone.
"""
