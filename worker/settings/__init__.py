"""Command-line options, environment and preset files, and what a configuration resolves to.

Only the command line and the resolving of a configuration import it.
"""
