"""Reads prompts with images and sounds, and says which field of the request has a bad one."""

from protocol.errors import InvalidRequest
from protocol.wire.messages import Generate
from protocol.wire.side_tasks import Embed, Render
from worker.engine.backend import Backend
from worker.engine.media import Media, MediumRefused


def read_media(
    backend: Backend, text: str, message: Generate | Render | Embed
) -> tuple[list[int], Media]:
    """Tokenize a text with the media of a task; raises `InvalidRequest`."""
    try:
        return backend.read_media(text, message.media)
    except MediumRefused as error:
        known = message.media_fields[error.place : error.place + 1]
        raise InvalidRequest(error.message, param=known[0] if known else None) from error
