"""Models that are loaded and unloaded on demand, as llama-server's router does.

Imported by the routes and the server.
"""
