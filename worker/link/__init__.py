"""A worker's main thread: the socket to the gateway, and the tasks on their way in and out.

Imported by `worker/process.py` alone.
"""
