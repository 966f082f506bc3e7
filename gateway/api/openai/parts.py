"""Content parts of a chat message: images and sounds become markers, the rest is joined as text.

A part that is an image or a sound is taken out of the body before anything else reads it; a part
of type `media_marker` with llama-server's marker stays in its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.api.fields.media import read_base64, require_audio, require_images
from gateway.api.fields.media_links import MediaLink, is_link
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard

MARKER = "media_marker"


@dataclass(slots=True)
class Media:
    """What was found, in order; a piece that is only named is empty and has a link."""

    pieces: list[bytes] = field(default_factory=list)
    links: list[MediaLink] = field(default_factory=list)

    def add(self, value: Any, path: str, kind: str) -> None:
        """Take in base64 or a URL; raises `InvalidRequest`."""
        if isinstance(value, str) and is_link(value):
            self.links.append(MediaLink(len(self.pieces), value, path, kind))
            self.pieces.append(b"")
        elif isinstance(value, str) and "://" in value[:16]:
            message = f"Field '{path}': must be a URL of http, https, file or data"
            raise InvalidRequest(message, param=path)
        else:
            self.pieces.append(read_base64(value, path))


def lift_media(body: Mapping[str, Any], card: ModelCard) -> tuple[Mapping[str, Any], Media]:
    """Return the body with markers for its media, and the media in order."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_has_parts(message) for message in messages):
        return body, Media()
    media = Media()
    lifted = [
        {**message, "content": _lift(message["content"], f"messages[{i}].content", card, media)}
        if _has_parts(message)
        else message
        for i, message in enumerate(messages)
    ]
    return {**body, "messages": lifted}, media


def join_parts(parts: Sequence[tuple[str, str]], between: str = "\n") -> str:
    """Join pairs of type and text: texts by a newline, markers without any (llama.cpp's rule)."""
    joined, after_marker = "", False
    for kind, text in parts:
        if kind != MARKER and joined and not after_marker:
            joined += between
        joined += text
        after_marker = kind == MARKER
    return joined


def _has_parts(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("content"), list)


def _lift(content: list[Any], path: str, card: ModelCard, media: Media) -> list[Any]:
    lifted = []
    for i, part in enumerate(content):
        if _take(part, f"{path}[{i}]", card, media):
            lifted.append({"type": MARKER, "text": card.media_marker})
        else:
            lifted.append(_without_marker(part, card))
    return lifted


def _without_marker(part: Any, card: ModelCard) -> Any:
    """Take a marker out of a client's text: it stands for media that are not there."""
    text = part.get("text") if isinstance(part, dict) else None
    if card.media_marker and isinstance(text, str) and card.media_marker in text:
        return {**part, "text": text.replace(card.media_marker, "")}
    return part


def _take(part: Any, path: str, card: ModelCard, media: Media) -> bool:
    """Take an image or a sound out of a part; false if it is none."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == MARKER:
        raise InvalidRequest("unsupported content[].type", param=f"{path}.type")
    if kind == "image_url":
        require_images(card)
        _image(part.get("image_url"), f"{path}.image_url", media)
    if kind == "input_audio":
        require_audio(card)
        _audio(part.get("input_audio"), f"{path}.input_audio", media)
    return kind in ("image_url", "input_audio")


def _image(value: Any, path: str, media: Media) -> None:
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise InvalidRequest(f"Field '{path}': must have a 'url'", param=path)
    media.add(url, f"{path}.url", "image")


def _audio(value: Any, path: str, media: Media) -> None:
    """Take a sound; llama-server reads it from `url` too, where it needs no format."""
    if isinstance(value, dict) and value.get("data") is None and value.get("url") is not None:
        media.add(value["url"], f"{path}.url", "audio")
        return
    if not isinstance(value, dict) or value.get("format") not in ("wav", "mp3", "flac"):
        message = f"Field '{path}.format': must be one of wav, mp3, flac"
        raise InvalidRequest(message, param=path)
    media.add(value.get("data"), f"{path}.data", "audio")
