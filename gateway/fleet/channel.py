"""The gateway's end of the control channel: lines to and from the supervisor.

The supervisor is the parent process and outlives the gateway; a broken connection is opened again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from protocol.errors import ErrorCode, TaskError
from protocol.process.control import MAX_LINE_BYTES, ControlError, Line, decode, encode

logger = logging.getLogger(__name__)

_AGAIN_S = 0.5
"""Seconds until the next attempt to connect; each failure in a row doubles them."""
_MOST_S = 10.0
"""Longest of these waits, in seconds."""


class Channel:
    """One connection, which a background task opens again whenever it breaks."""

    def __init__(
        self,
        path: str,
        on_line: Callable[[Line], None],
        on_lost: Callable[[], None],
        first: Line | None = None,
    ) -> None:
        """Take what to call for each line and at the end of each connection.

        `first` is said at the beginning of each.
        """
        self._first = first
        self._on_lost = on_lost
        self._path = path
        self._on_line = on_line
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether an order would reach the supervisor."""
        return self._writer is not None

    def open(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Close the connection; it is not opened again."""
        if self._task is not None:
            self._task.cancel()
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def send(self, order: Line) -> None:
        """Send an order; dropped while disconnected, as the supervisor lists all on connecting."""
        if self._writer is not None:
            self._writer.write(encode(order))

    async def _run(self) -> None:
        retry_s = _AGAIN_S
        while True:
            try:
                await self._converse()
                retry_s = _AGAIN_S
            except OSError as error:
                logger.error(
                    "supervisor unreachable",
                    extra={
                        "file": self._path,
                        "cause": error,
                        "retry_s": retry_s,
                        "action": "loaded models are served, none is loaded or unloaded",
                        "hint": "does the supervisor run, as the same user?",
                    },
                )
            except Exception:
                logger.exception(
                    "control channel failed",
                    extra={
                        "file": self._path,
                        "retry_s": retry_s,
                        "action": "it is opened again",
                        "hint": "report it as a fault",
                    },
                )
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _MOST_S)

    async def _converse(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self._path, limit=MAX_LINE_BYTES)
        try:
            if self._first is not None:
                self.send(self._first)
            while data := await reader.readline():
                self._read(data)
        finally:
            writer, self._writer = self._writer, None
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.close()
            self._on_lost()

    def _read(self, data: bytes) -> None:
        try:
            line = decode(data)
        except ControlError as error:
            logger.error(
                "control line unreadable", extra={"cause": error, "action": "the line is ignored"}
            )
            return
        try:
            self._on_line(line)
        except Exception:
            logger.exception(
                "control line not carried out",
                extra={"kind": type(line).__name__, "action": "the line is ignored"},
            )


def unreachable() -> TaskError:
    """Return the error for an order that the supervisor cannot get."""
    return TaskError(ErrorCode.UNAVAILABLE, "The supervisor does not answer")
