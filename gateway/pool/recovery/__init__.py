"""Recovery from faults: harmful requests are quarantined, failing workers ejected.

Pure: the dispatcher calls it and acts on its results.
"""
