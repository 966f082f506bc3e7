"""Who sends a request and from where: keys, addresses behind proxies, web pages.

Imported by `gateway/app.py` and the middlewares.
"""
