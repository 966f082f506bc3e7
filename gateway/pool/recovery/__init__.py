"""Recovery from faults: answers continue at other workers; harmful requests and workers are held.

Pure: the dispatcher calls it and acts on its results.
"""
