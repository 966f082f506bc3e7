"""What a person says beside a configuration file, and where the files that it names come from.

Only the command line and the resolving of a configuration import it.
"""
