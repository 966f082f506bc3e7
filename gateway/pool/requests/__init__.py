"""What each HTTP request asked for, where its tasks went and why, and what they have cost.

Pure bookkeeping, called by the access layer and the pool. It writes one log line a request, gives
its cost to the usage log, and keeps the latest ones for admins.
"""
