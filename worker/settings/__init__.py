"""Command-line options and environment, and the model files that a configuration names.

Only the command line and the resolving of a configuration import it.
"""
