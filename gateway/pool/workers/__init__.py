"""One worker as the dispatcher sees it, and the slot ids of the whole pool. Pure.

Imported by routing, recovery and the dispatcher.
"""
