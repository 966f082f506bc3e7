"""A core for the gateway alone, as on a host that has more cores than its models use."""

import os


def leave_one() -> tuple[int, ...]:
    """Keep this process, and all that it starts, off one core; return that core.

    Raises `ValueError` where there is only one.
    """
    *rest, last = sorted(os.sched_getaffinity(0))
    if not rest:
        raise ValueError("there is only one core")
    os.sched_setaffinity(0, rest)
    return (last,)
