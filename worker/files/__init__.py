"""Model files: names of split ones, headers, repositories of Hugging Face and their cache on disk.

Imports no other folder of the worker.
"""
