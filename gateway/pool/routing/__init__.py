"""Which worker a task goes to, and what is known of each worker for that. Pure.

Imported by the dispatcher and the pool.
"""
