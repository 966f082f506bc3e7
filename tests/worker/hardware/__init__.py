"""Where a model lies, and which devices a worker sees."""
