"""How llama.cpp's threads wait for each other: OpenMP's settings of a worker's process.

A token has hundreds of barriers. A thread that sleeps at each must be woken by the kernel, which
halves the tokens a second of one stream; one that spins takes the core from other threads. 1,000
rounds (some 12 us) are chosen, see docs/notes/threads.md: as fast as longer spins where the cores
are free, and beside another process as fast as llama-server, where 5,000 rounds lose half.
"""

from collections.abc import Mapping

from protocol.config.config import WorkerConfig
from worker.host.placement import CHOSEN_POLL

SPINS_PER_POLL = 20
"""Rounds of libgomp's wait for each unit of `--poll`: 1,000 at the chosen poll of 50."""


def environment(worker: WorkerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the OpenMP variables of a worker's process; they are read when it loads llama.cpp.

    Variables that the user has set take precedence, except that threads are never bound.
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
    given = {name: environ[name] for name in found if name in environ}
    # Bound threads of all workers would share the same first cores.
    return {**found, **given, "OMP_PROC_BIND": "false"}
