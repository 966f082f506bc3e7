"""Ends this process with its supervisor, so that no orphaned worker keeps a GPU's memory.

Only under a supervisor, which sets `LLAMAPOOL_PARENT`; a process that a user or systemd started is
not affected.
"""

import ctypes
import os
import signal

PARENT_VARIABLE = "LLAMAPOOL_PARENT"

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the supervisor ends; exit now if it has ended already."""
    parent = os.environ.get(PARENT_VARIABLE, "")
    if not parent.isdigit():
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        os._exit(1)
