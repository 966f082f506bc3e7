"""The environment variables of a worker's process: OpenMP's settings, and the visible GPUs.

llama.cpp's threads wait for each other at hundreds of barriers for each token. A thread that sleeps
at each must be woken by the kernel, which halves the tokens per second of one stream; a thread that
spins takes the core from other threads. 3,000 rounds (about 32 us) are the default: about as long
as the kernel takes to wake a thread. On a quiet machine fewer rounds cost up to a tenth of the
tokens per second, beside another process more rounds cost up to half (docs/notes/threads.md).
"""

from collections.abc import Mapping

from protocol.config.config import WorkerConfig
from worker.host.placement import CHOSEN_POLL

SPINS_PER_POLL = 60
"""Rounds of libgomp's wait for each unit of `--poll`: 3,000 at the chosen poll of 50."""


def process_environment(worker: WorkerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker's process, which llama.cpp reads when it is loaded.

    OpenMP variables that the user has set take precedence, except that threads are never bound.
    """
    poll = worker.poll if worker.poll >= 0 else CHOSEN_POLL
    found = {
        # Unset, threads would spin for up to 3 ms at each of the many barriers of a token.
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": str(poll * SPINS_PER_POLL),
    }
    if "OMP_WAIT_POLICY" in environ:  # a spin count would take precedence
        del found["GOMP_SPINCOUNT"]
    if n_threads := max(worker.n_threads, worker.n_threads_batch, 0):
        found["OMP_NUM_THREADS"] = str(n_threads)
    found |= {name: environ[name] for name in found if name in environ}
    # Bound threads of all workers would share the same first cores.
    found["OMP_PROC_BIND"] = "false"
    if worker.devices:
        found |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": worker.devices}
    return found
