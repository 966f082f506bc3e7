"""JSON schemas to GBNF: pure text, the same that llama.cpp's converter writes.

`schema.to_gbnf` converts one schema; `builder.GrammarBuilder` puts rules and schemas together into
one grammar.
"""
