"""One task: its record, its attempts, what has come of its answer, and the stream to its request.

Imported by everything in the pool that handles tasks, and by the HTTP side, which reads streams.
"""
