"""Streams that continue when their client hangs up, and can be read again, as in llama-server.

`gateway/routes` keeps an answer through it; it knows nothing of tasks, models or workers.
"""
