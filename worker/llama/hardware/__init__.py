"""Devices, buffers of tensors, pools of threads, and fitting a model into memory.

Only `worker.llama` and the command line's --list-devices import it.
"""
