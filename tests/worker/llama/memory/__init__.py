"""Copies, parts and checkpoints of what sequences have read."""
