"""The API keys: the file of keys, what a key may do, and the commands that change the file.

Imported by the gateway's HTTP layers and by the pool, which keeps to the limits of a key.
"""
