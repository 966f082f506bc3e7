"""Where tensors and threads go: devices, buffers, pools of threads, and what fits.

Only `worker.llama` and the command line's --list-devices import it.
"""
