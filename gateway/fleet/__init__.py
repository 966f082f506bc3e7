"""The supervisor as the gateway sees it: the channel to it, its reports, and the orders of admins.

Imported by the routes, the feed, `gateway/models/` and `gateway/server.py`.
"""
