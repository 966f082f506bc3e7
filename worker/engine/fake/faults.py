"""Faults of a process on demand, for tests of what happens to its tasks.

`LLAMAPOOL_FAKE_FAULTS` names a folder. Before each batch a worker looks there for a file of its
name, removes it, and does what it says. A file NAME.loading is obeyed at each load, and stays.
Only the fake backend reads this variable.
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
        self._is_broken = False
        self._held = bytearray()

    def inject_at_load(self) -> None:
        """Do what is ordered for each load, if anything."""
        if self._path is not None:
            self._carry_out(self._order(self._path.with_name(f"{self._path.name}.loading")))

    def inject(self) -> None:
        """Do what is ordered, if anything; an exception fails the tasks of the step."""
        if self._path is None:
            return
        if self._is_broken:
            raise RuntimeError("the fake was asked to be broken")
        if self._slow_s:
            time.sleep(self._slow_s)
        if order := self._order(self._path):
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            self._carry_out(order)

    @staticmethod
    def _order(path: Path) -> list[str]:
        try:
            return path.read_text().split()
        except OSError:
            return []

    def _carry_out(self, order: list[str]) -> None:
        if not order:
            return
        kind, value = order[0], float(order[1]) if len(order) > 1 else 0.0
        match kind:
            case "raise":
                raise RuntimeError("the fake was asked to raise")
            case "break":  # this batch and all that follow fail
                self._is_broken = True
            case "exit":
                os._exit(int(value))
            case "signal":
                os.kill(os.getpid(), signal.Signals(int(value)))
            case "hang":
                threading.Event().wait()
            case "hold":  # a call into C that keeps the interpreter's lock
                ctypes.PyDLL(None).usleep(int(value * 1e6))
            case "allocate":  # so many MiB, each page of them used
                self._held = bytearray(b"x") * int(value * (1 << 20))
            case "slow":
                self._slow_s = value
            case _:
                raise RuntimeError(f"the fake knows no fault {kind}")
