"""Connections of workers, as far as they are more than sockets.

Imported by the pool's transport.
"""
