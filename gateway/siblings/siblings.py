"""Asks the other gateways of this host, over a Unix socket of each in a private folder.

A question is one line of JSON, and so is its answer. A gateway is there as long as its socket takes
connections; no list of them is kept.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

logger = logging.getLogger(__name__)

Answer = Mapping[str, Any]
Responder = Callable[[Mapping[str, Any]], Awaitable[Answer]]

_LIMIT_S = 2.0
"""Time for one gateway to answer."""
_QUIET_S = 60.0
"""Seconds until it is logged again that the same gateway does not answer."""
_LINE_BYTES = 16 * 1024 * 1024
"""Longest question or answer, in bytes."""


class Siblings:
    """This gateway among the others; without a folder it is the only one."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) if folder else None
        self.name = f"{os.getpid()}-{time.time_ns()}"
        self._responders: dict[str, Responder] = {}
        self._server: asyncio.Server | None = None
        self._fd = -1
        """The open folder: through it a path fits in 107 bytes, however long the folder's is."""
        self._logged_at: dict[str, float] = {}
        """When it was last logged that a gateway does not answer."""

    def respond(self, question: str, responder: Responder) -> None:
        """Answer a question of the others by this function."""
        self._responders[question] = responder

    async def open(self) -> None:
        """Listen to the others."""
        if self.folder is not None:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # It gets its name once it listens: one that refuses under it has ended.
            path = self._path(self.name).with_suffix(".new")
            self._server = await asyncio.start_unix_server(self._serve, path, limit=_LINE_BYTES)
            path.chmod(0o600)
            path.rename(self._path(self.name))

    def close(self) -> None:
        """Stop answering; idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path(self.name).unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def is_open(self) -> bool:
        """Whether the others can ask this gateway."""
        return self._server is not None

    @property
    def has_others(self) -> bool:
        """Whether there are, or were, other gateways on this host."""
        return bool(self._others())

    async def ask(self, question: str, **fields: Any) -> dict[str, Answer | None]:
        """Ask all others; returns the answers by name, None of those that did not answer in time.

        A gateway that has ended is left out.
        """
        names = self._others()
        line = orjson.dumps({"question": question, **fields}) + b"\n"
        answers = await asyncio.gather(*(self._ask(name, line) for name in names))
        return {
            name: answer
            for name, (is_there, answer) in zip(names, answers, strict=True)
            if is_there
        }

    def _others(self) -> list[str]:
        if self.folder is None:
            return []
        return [path.stem for path in self.folder.glob("*.sock") if path.stem != self.name]

    async def _ask(self, name: str, line: bytes) -> tuple[bool, Answer | None]:
        """Ask one gateway; returns whether it is there, and its answer."""
        try:
            async with asyncio.timeout(_LIMIT_S):
                reader, writer = await asyncio.open_unix_connection(
                    self._path(name), limit=_LINE_BYTES
                )
                try:
                    writer.write(line)
                    return True, orjson.loads(await reader.readline())
                finally:
                    writer.close()
        except ConnectionRefusedError:  # it was killed
            with contextlib.suppress(OSError):
                self._path(name).unlink()
            return False, None
        except FileNotFoundError:
            return False, None
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            self._log_silence(name, error)
            return True, None

    def _log_silence(self, name: str, error: Exception) -> None:
        """Log that a gateway does not answer, once a minute: it is asked each second."""
        now = time.monotonic()
        recent = {name: at for name, at in self._logged_at.items() if now - at < _QUIET_S}
        self._logged_at = {name: now, **recent}
        if name not in recent:
            logger.warning(
                "gateway does not answer",
                extra={
                    "file": self._path(name),
                    "cause": repr(error),
                    "action": "this gateway goes on without its answer",
                },
            )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            try:
                question = orjson.loads(await reader.readline())
                answer = await self._responders[question.pop("question")](question)
                writer.write(orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS) + b"\n")
                await writer.drain()
            except (ValueError, KeyError, AttributeError):
                logger.exception(
                    "question of another gateway not answered",
                    extra={"action": "that gateway goes on without the answer"},
                )
            finally:
                writer.close()

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        folder = Path(f"/proc/self/fd/{self._fd}") if self._fd >= 0 else self.folder
        return folder / f"{name}.sock"
