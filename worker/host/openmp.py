"""How llama.cpp's threads wait for each other: OpenMP's settings of a worker's process.

A token has hundreds of barriers. A thread that sleeps at each must be woken by the kernel; one that
spins takes the core from other threads. Measured on 2 cores, one
stream: 5,000 rounds (some 60 us) come within 4 % of waiting for ever, which is 2.7 times the tokens
a second of sleeping at once; with 300 a stream loses a fifth, for the gateway and the link take a
core for a moment at every token. Where another process keeps one of the cores, 300 rounds lose a
quarter against sleeping, 3,000 three quarters, and OpenMP's default nineteen twentieths.
"""

from collections.abc import Mapping

from protocol.config.config import WorkerConfig
from worker.host.placement import CHOSEN_POLL

SPINS_PER_POLL = 100
"""5,000 rounds at the chosen poll."""


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
    said = {name: environ[name] for name in found if name in environ}
    # Bound threads of all workers would share the same first cores.
    return {**found, **said, "OMP_PROC_BIND": "false"}
