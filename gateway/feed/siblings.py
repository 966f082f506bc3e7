"""The other gateways' parts of the state, asked for once a second while there are readers."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from gateway.feed.history import GatewaySecond
from gateway.feed.part import GatewayPart, read_part
from gateway.feed.sources import FeedSources

logger = logging.getLogger(__name__)

_QUESTION = "pool feed"
_INTERVAL_S = 1.0
"""Seconds between two questions to the other gateways."""


class SiblingParts:
    """The latest parts of the other gateways."""

    def __init__(self, sources: FeedSources) -> None:
        self.parts: list[GatewayPart] = []
        self.seconds: list[Mapping[int, GatewaySecond]] = []
        self.silent: list[str] = []
        """Gateways that are there but do not answer, or answer what cannot be read."""
        self._sources = sources
        self._siblings = sources.siblings
        self._task: asyncio.Task[None] | None = None
        self._siblings.respond(_QUESTION, self._answer)

    def open(self) -> None:
        """Begin to ask; without a folder there are no others."""
        if self._task is None and self._siblings.folder is not None:
            self._task = asyncio.create_task(self._ask())

    def close(self) -> None:
        """Stop asking, and forget the answers; idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.parts, self.seconds, self.silent = [], [], []

    async def _ask(self) -> None:
        while True:
            try:
                self._take(await self._siblings.ask(_QUESTION))
            except OSError as error:
                logger.warning(
                    "gateways not asked",
                    extra={
                        "file": self._siblings.folder,
                        "cause": error,
                        "retry_s": _INTERVAL_S,
                        "action": "the state of the pool has their last answers",
                    },
                )
            await asyncio.sleep(_INTERVAL_S)

    def _take(self, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        self.parts, self.seconds, self.silent = [], [], []
        for name, answer in answers.items():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                if answer is not None:
                    part, seconds = read_part(answer)
                    self.parts.append(part)
                    self.seconds.append(seconds)
                    continue
            self.silent.append(name)

    async def _answer(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = self._sources.sampler.history.own_rows()
        return {**self._sources.part().as_row(), "seconds": rows}
