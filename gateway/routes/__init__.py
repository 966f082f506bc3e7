"""The endpoints: each reads a request, asks the pool, and writes an answer."""
