"""Hypercorn's protocols, where a client could stop or leak them: inboxes, HTTP/1.1, HTTP/2.

Imported by the connections; imports no other part of the gateway.
"""
