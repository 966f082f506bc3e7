"""Proves llamapool on a GPU, offline, in stages of at most nine minutes (README.md)."""
