"""Streams that go on when their client hangs up, and that can be read again, as llama-server's.

`gateway/routes` keeps an answer through it; it knows nothing of tasks, models or workers.
"""
