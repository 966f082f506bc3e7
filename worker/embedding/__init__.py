"""Embeddings and reranking: texts in, batches through the engine, vectors out.

Imported by the link and the process.
"""
