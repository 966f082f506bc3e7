"""The live feed of the pool: one state, its changes, and the last minutes.

Imported by the server, and by `gateway/app.py`; it reads the pool and changes nothing.
"""
