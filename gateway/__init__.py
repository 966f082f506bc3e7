"""The HTTP side: auth, validation, queue, routing, SSE, errors, metrics.

One asyncio process. It never imports `worker` or `llama_cpp`; what it knows about a model
comes from the `Ready` message of the model's worker.
"""
