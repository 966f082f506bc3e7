"""Embeddings: a second context on the same weights, if possible without the output head."""
