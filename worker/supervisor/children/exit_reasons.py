"""Texts that explain why a process died, and what to do."""

import re
import signal
from collections.abc import Mapping

from protocol.errors import EXIT_CONFIG, EXIT_RESTART

_SIGNALS: Mapping[int, str] = {
    signal.SIGILL: (
        "illegal instruction: llama.cpp was built for instructions that this CPU does not run; "
        "rebuild it here: CMAKE_ARGS=-DGGML_NATIVE=OFF pip install --force-reinstall "
        "--no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
    ),
    signal.SIGKILL: "killed (out of memory?)",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error (was the model file cut short while it was mapped?)",
}

_CODES: Mapping[int, str] = {
    0: "ended by itself with exit code 0",
    EXIT_RESTART: "needs a restart (engine stuck, or a device missing)",
    EXIT_CONFIG: "cannot work as configured",
}

_ABORT = re.compile(
    rb"(?:^|/)([\w.+-]{1,64}\.(?:c|h|m|cu|cpp|hpp|cuh):\d+: [ -~]{1,300})$", re.MULTILINE
)
"""What ggml prints before it aborts: place and condition."""


def abort_reason(stderr: bytes) -> str:
    """Return the last line in which a library gives the reason of its abort; "" without one."""
    found = _ABORT.findall(stderr)
    return found[-1].decode() if found else ""


def explain(exit_code: int, abort: str = "") -> str:
    """Explain a `Popen.returncode`; `abort` is the reason of an abort, if known."""
    if exit_code == -signal.SIGABRT and abort:
        return f"aborted: {abort}"
    if exit_code < 0:
        return _SIGNALS.get(-exit_code) or f"killed by {_signal_name(-exit_code)}"
    return _CODES.get(exit_code, f"exit code {exit_code}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
