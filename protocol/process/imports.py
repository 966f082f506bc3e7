"""Imports without the collections of garbage that Python would make meanwhile.

And those of a command, which take 0.3 s, without a traceback for Ctrl-C.
"""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Collect nothing within, and freeze what there is at the end: modules live as long as this.

    Imports leave little garbage. Neither a later collection nor the end of the process walks over
    what is frozen: for the gateway that is 20 ms at its first collection and 60 ms at its end.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def importing_command() -> Iterator[None]:
    """Import on the main thread; Ctrl-C ends the process by the signal, as it does programs in C.

    Nothing is there yet that would have to be cleaned up.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    with importing():
        yield
    signal.signal(signal.SIGINT, before)
