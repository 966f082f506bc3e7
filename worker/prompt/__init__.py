"""Converts requests to the tokens that a slot reads.

Imported by the link, the process and whoever checks a configuration.
"""
