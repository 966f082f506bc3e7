"""The HTTP side: auth, validation, queue, routing, SSE, errors, metrics.

One asyncio process. It never imports `worker` or `llama_cpp`; it knows of models what their workers
told it in `Ready`.
"""
