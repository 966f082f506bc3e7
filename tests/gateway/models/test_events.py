"""Listeners to changes of models that do not read."""

from gateway.models import events
from gateway.models.events import ModelEvents


async def test_a_listener_that_is_too_far_behind_is_ended_once() -> None:
    told = ModelEvents()
    with told.listening() as mailbox:
        for number in range(events._MAX_EVENTS + 500):
            told.publish({"number": number})
        told.end()
        read = [mailbox.get_nowait() for _ in range(mailbox.qsize())]
    assert read[-1] is None
    assert read.count(None) == 1
    assert len(read) == events._MAX_EVENTS + 1
