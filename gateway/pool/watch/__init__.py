"""What can be watched of the pool: what its slots do, what waits, and what has happened.

Imported by the pool, and by `gateway/feed/`; decides nothing.
"""
