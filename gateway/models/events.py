"""Listeners to changes of models: each has a bounded mailbox that ends with None."""

import asyncio
import contextlib
from collections.abc import Iterator

from gateway.models.views import Event

_MAX_EVENTS = 1000
"""Events that a listener may be behind; with more, its stream is ended."""

Mailbox = asyncio.Queue[Event | None]


class ModelEvents:
    """All listeners of a server."""

    def __init__(self) -> None:
        self._mailboxes: list[Mailbox] = []
        self._is_over = False

    @property
    def has_listeners(self) -> bool:
        """Whether there is any."""
        return bool(self._mailboxes)

    def publish(self, event: Event) -> None:
        """Put an event into every mailbox."""
        for mailbox in self._mailboxes:
            mailbox.put_nowait(event if mailbox.qsize() < _MAX_EVENTS else None)

    def end(self) -> None:
        """End every mailbox, those of later listeners too."""
        self._is_over = True
        for mailbox in self._mailboxes:
            mailbox.put_nowait(None)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Mailbox]:
        """Yield a mailbox that gets every event from now on."""
        mailbox: Mailbox = asyncio.Queue()
        if self._is_over:
            mailbox.put_nowait(None)
        self._mailboxes.append(mailbox)
        try:
            yield mailbox
        finally:
            self._mailboxes.remove(mailbox)
