"""The supervised processes: how each is started, what is kept about it, when it starts again.

Imported by the supervisor, and by the doctor for the reasons of a death.
"""
