"""`llamapool status`, `drain`, `undrain` and `rollout`: clients of the admin API of a running pool.

They import nothing of the gateway.
"""
