"""Faults of a process, ordered from outside: for tests of what becomes of its tasks.

`LLAMAPOOL_FAKE_FAULTS` names a folder. Before each batch a worker looks there for a file of its
name, removes it, and does what it says. Only the fake backend reads this variable.
"""

import contextlib
import ctypes
import os
import signal
import threading
import time
from pathlib import Path

FAULTS_VARIABLE = "LLAMAPOOL_FAKE_FAULTS"


class ProcessFaults:
    """The orders to one worker; without the variable there are none."""

    def __init__(self, worker: str) -> None:
        folder = os.environ.get(FAULTS_VARIABLE, "")
        self._path = Path(folder) / worker.replace("/", "_") if folder else None
        self._slow_s = 0.0

    def strike(self) -> None:
        """Do what is ordered, if anything; a RuntimeError ends the engine's thread."""
        if self._path is None:
            return
        if self._slow_s:
            time.sleep(self._slow_s)
        try:
            order = self._path.read_text().split()
        except OSError:
            return
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        if order:
            self._obey(order[0], float(order[1]) if len(order) > 1 else 0.0)

    def _obey(self, kind: str, value: float) -> None:
        match kind:
            case "raise":
                raise RuntimeError("the fake was asked to raise")
            case "exit":
                os._exit(int(value))
            case "signal":
                os.kill(os.getpid(), signal.Signals(int(value)))
            case "hang":
                threading.Event().wait()
            case "hold":  # a call into C that keeps the interpreter's lock
                ctypes.PyDLL(None).usleep(int(value * 1e6))
            case "slow":
                self._slow_s = value
            case _:
                raise RuntimeError(f"the fake knows no fault {kind}")
