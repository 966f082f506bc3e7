"""`llamapool status`, `drain`, `undrain` and `rollout`: clients of the admin API of a running pool.

They import neither the gateway nor the supervisor.
"""
