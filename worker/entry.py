"""The command `llamapool`: imports the command line, with signals in mind."""

import os
import signal
import sys

from protocol.process.imports import importing_command


def main() -> None:
    """Import the command line and run it."""
    if sys.argv[1:2] == ["serve"] and not os.isatty(2):
        # It asks for a reload and not for the end: it waits until `serve` can take it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    with importing_command():
        from worker.cli import main
    main()


if __name__ == "__main__":
    main()
