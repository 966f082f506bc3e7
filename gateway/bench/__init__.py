"""`llamapool bench`: a load on any OpenAI-compatible server, and what it did there."""
