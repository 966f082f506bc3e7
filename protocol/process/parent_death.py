"""Die with the process that started us, however it ends: no worker may keep a GPU's memory alone.

Only under a supervisor, which says so by `LLAMAPOOL_PARENT`; a process that a person or systemd
started lives on.
"""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "LLAMAPOOL_PARENT"

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL at the supervisor's death; exit now if it is dead already."""
    parent = os.environ.get(PARENT_VARIABLE, "")
    if not parent.isdigit() or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the request was in place
        os._exit(1)
