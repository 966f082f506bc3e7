"""Counts what a call does, so that a test can tell linear work from quadratic, on any machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_of(work: Callable[[], object]) -> int:
    """Count the lines of Python that a call executes, each time that it does."""
    n = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal n
        n += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return n
