"""The tasks of a worker, from their arrival to their end.

Imported by the link; `worker.process` opens the slot files.
"""
