"""Reads a configuration on a separate thread, because files may have to be fetched and sampled.

The thread wakes the supervisor's loop at its end, and the loop takes the result.
"""

import queue
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSource:
    """Where a configuration comes from: a file, and options that take precedence over it."""

    path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of rolling changes, such as `worker.n_ctx`; they override those of `serve`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPool:
    """A resolved configuration."""

    pool: PoolConfig
    tables: tuple[WorkerConfig, ...]
    """Each worker as in its table, before it got its share of the machine."""


Reader = Callable[[ConfigSource], ReadPool]
"""Raises `ConfigError`."""


class Planner:
    """Runs one job at a time."""

    def __init__(self) -> None:
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self.is_busy = False

    def open(self, selector: selectors.BaseSelector) -> None:
        """Wake this selector's loop when a job is done."""
        selector.register(self._ours, selectors.EVENT_READ, lambda: self._ours.recv(4096))

    def close(self) -> None:
        """Close the sockets; a job that still runs ends with the process."""
        self._ours.close()
        self._theirs.close()

    def begin(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `job` on a thread; `then` gets its result, or the `ConfigError` it raised."""
        assert not self.is_busy
        self.is_busy = True
        thread = threading.Thread(target=self._run, args=(job, then), daemon=True)
        thread.start()

    def _run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        try:
            result = job()
        except ConfigError as error:
            result = error
        except Exception as error:  # a bug must not let the rolling change wait for ever
            result = ConfigError(f"{type(error).__name__}: {error}")
        self._done.put(lambda: then(result))
        try:
            self._theirs.send(b"!")
        except OSError:
            return  # the supervisor ends

    def turn(self) -> None:
        """Pass the result of a finished job on; called on the loop."""
        while not self._done.empty():
            self.is_busy = False
            self._done.get()()
