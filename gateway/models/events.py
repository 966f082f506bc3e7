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
        """Put an event into every mailbox, or the end into one whose listener is too far behind."""
        for mailbox in self._mailboxes:
            if mailbox.qsize() < _MAX_EVENTS:
                mailbox.put_nowait(event)
            else:
                _end(mailbox)

    def end(self) -> None:
        """End every mailbox, those of later listeners too."""
        self._is_over = True
        for mailbox in self._mailboxes:
            _end(mailbox)

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


def _end(mailbox: Mailbox) -> None:
    """Put the end into a mailbox; one beyond its bound has it already."""
    if mailbox.qsize() <= _MAX_EVENTS:
        mailbox.put_nowait(None)
