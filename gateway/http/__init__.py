"""HTTP itself: sockets, bodies, keys, limits, errors, event streams. No words of any API.

Imported by the routes and the server; imports no route.
"""
