"""HTTP itself: sockets, bodies, keys, limits, errors, event streams. Independent of the APIs.

Imported by the routes and the server; imports no route.
"""
