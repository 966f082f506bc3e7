"""One task: its record, its attempts, its answer so far, and the stream to its request.

Imported by everything in the pool that handles tasks, and by the HTTP side, which reads streams.
"""
