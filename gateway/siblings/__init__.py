"""The other gateways of this host: what one of them is asked, all of them answer.

Imported by the server and the routes; knows nothing of the pool.
"""
