"""Moves the wall clock of a process by the hours that a file says, as a bad time server would."""

import os
import time

_path = os.environ.get("HOURS_FILE", "")
_time, _time_ns = time.time, time.time_ns


def _jump_s() -> int:
    try:
        with open(_path) as file:  # noqa: PTH123  pathlib would double the time of each start
            return int(file.read() or 0) * 3600
    except (OSError, ValueError):
        return 0


def _jumping() -> float:
    return _time() + _jump_s()


def _jumping_ns() -> int:
    return _time_ns() + _jump_s() * 10**9


time.time, time.time_ns = _jumping, _jumping_ns
