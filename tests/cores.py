"""How many cores a test may compute on: pytest-xdist's processes share the machine."""

import os


def threads() -> int:
    """Return the number of threads for a model, two at most: more make no test faster.

    Threads of llama.cpp wait for one another awake, so more threads than cores cost a multiple of
    the time.
    """
    n_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1, min(2, len(os.sched_getaffinity(0)) // n_processes))
