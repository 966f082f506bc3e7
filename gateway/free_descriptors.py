"""Says in the log that no file descriptor is free.

uvloop closes new clients then, unanswered and without a word to this process.
"""

import asyncio
import errno
import logging
import os
import resource
import time
from collections.abc import Callable

from protocol.process.log_pause import LogPause

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
"""Seconds between two looks, of 10 us each."""


class FreeDescriptors:
    """Looks whether one more file can be opened."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = LogPause(clock)

    def check(self) -> None:
        """Log a line if there is no descriptor, at most one a minute."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._pause.take_turn():
                self._log(error)

    @staticmethod
    def _log(error: OSError) -> None:
        n_most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        logger.error(
            "no file descriptor is free",
            extra={
                "cause": error.strerror,
                "action": "new clients are closed unanswered",
                "hint": f"raise `ulimit -n` ({n_most}), LimitNOFILE=; lower limits.connections",
            },
        )


async def watch_descriptors() -> None:
    """Look until this is cancelled."""
    free = FreeDescriptors()
    while True:
        await asyncio.sleep(_INTERVAL_S)
        free.check()
