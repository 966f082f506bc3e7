"""Embeddings: a second context on the same weights, and a way past the output head."""
