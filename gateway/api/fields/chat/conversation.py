"""The messages of a chat as its template reads them, and the images and sounds in them.

A dialect's reader makes a `ChatMessage` of each of its messages. An image or a sound becomes the
model's marker, and its data goes to `ChatMedia`; the texts around it are joined with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.api.fields.media import read_base64, require_audio, require_images
from gateway.api.fields.media_links import MediaLink, is_link
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard


class Part(NamedTuple):
    """One part of a message's content."""

    text: str
    is_marker: bool = False
    """The text is the marker that stands for an image or a sound."""


@dataclass(slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: str | list[Part] = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """Other fields for the template: `reasoning_content`, `tool_call_id`, `name`, unknown ones."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def for_template(self) -> dict[str, Any]:
        """Return what the template reads. `tool_calls` is absent if there are none: templates ask
        whether the field exists."""
        content: Any = self.content
        if not isinstance(content, str):
            has_media = any(part.is_marker for part in content)
            content = join_parts(content) if has_media or not content else _texts(content)
        message = {"role": self.role, "content": content, **self.extra}
        return message | ({"tool_calls": self.tool_calls} if self.tool_calls else {})


def tool_call(name: str, arguments: Any, call_id: str | None) -> dict[str, Any]:
    """Return an earlier call as templates read it; empty arguments become `{}`."""
    function = {"name": name, "arguments": arguments or "{}"}
    call = {"type": "function", "function": function}
    return call if call_id is None else {**call, "id": call_id}


def _texts(parts: Iterable[Part]) -> list[dict[str, str]]:
    return [{"type": "text", "text": part.text} for part in parts]


def join_parts(parts: Iterable[Part]) -> str:
    """Join texts by line breaks; next to a marker stands none (llama.cpp's rule)."""
    joined, after_marker = "", False
    for part in parts:
        if not part.is_marker and joined and not after_marker:
            joined += "\n"
        joined += part.text
        after_marker = part.is_marker
    return joined


class ChatMedia:
    """The images and sounds of a conversation, in order."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._pieces: list[bytes] = []
        self._links: list[MediaLink] = []
        self._fields: list[str] = []

    @property
    def pieces(self) -> Sequence[bytes]:
        """The data of each; empty where a link says where to fetch it."""
        return self._pieces

    @property
    def fields(self) -> Sequence[str]:
        """The field that has each of them."""
        return self._fields

    @property
    def links(self) -> Sequence[MediaLink]:
        """What is still to be fetched."""
        return self._links

    def text(self, text: str) -> Part:
        """Return a part of text, without markers of the client's: they stand for no image."""
        marker = self._card.media_marker
        return Part(text.replace(marker, "") if marker else text)

    def require_images(self) -> None:
        """Raise `TaskError` if the model takes no images."""
        require_images(self._card)

    def image(self, url: str, path: str) -> Part:
        """Take in an image by its URL, which may be a data URL or base64; raises `TaskError`."""
        self.require_images()
        return self._add(url, path, "image")

    def require_audio(self) -> None:
        """Raise `TaskError` if the model takes no audio."""
        require_audio(self._card)

    def audio(self, value: Any, path: str) -> Part:
        """Take in a sound: base64 or a URL; raises `TaskError`."""
        self.require_audio()
        return self._add(value, path, "audio")

    def sound_file(self, data: bytes, path: str) -> Part:
        """Take in a sound that was uploaded; raises `TaskError`."""
        self.require_audio()
        if not data:
            raise InvalidRequest(f"Field '{path}': must not be empty", param=path)
        return self._put(data, path)

    def _add(self, value: Any, path: str, kind: str) -> Part:
        if isinstance(value, str) and is_link(value):
            self._links.append(MediaLink(len(self._pieces), value, path, kind))
            return self._put(b"", path)
        if isinstance(value, str) and "://" in value[:16]:
            message = f"Field '{path}': must be a URL of http, https, file or data"
            raise InvalidRequest(message, param=path)
        return self._put(read_base64(value, path), path)

    def _put(self, data: bytes, path: str) -> Part:
        self._pieces.append(data)
        self._fields.append(path)
        return Part(self._card.media_marker, is_marker=True)


def require_messages(value: Any) -> list[Any]:
    """Return the list of messages; none at all is allowed, as in llama-server."""
    if value is None:
        raise InvalidRequest("'messages' is required", param="messages")
    if not isinstance(value, list):
        raise InvalidRequest("Expected 'messages' to be an array", param="messages")
    return value
