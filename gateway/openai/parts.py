"""Content parts of a chat message: images and sounds become markers, the rest is joined as text.

A part that is an image or a sound is taken out of the body before anything else reads it; a part
of type `media_marker` with llama-server's marker stays in its place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.llamacpp.media import read_base64, require_audio, require_images
from protocol.errors import InvalidRequest
from protocol.facts import ModelCard

MARKER = "media_marker"
_MAX_MEDIA = 64


def lift_media(
    body: Mapping[str, Any], card: ModelCard
) -> tuple[Mapping[str, Any], tuple[bytes, ...]]:
    """Return the body with markers for its media, and the media in order."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_has_parts(message) for message in messages):
        return body, ()
    media: list[bytes] = []
    lifted = [
        {**message, "content": _lift(message["content"], f"messages[{i}].content", card, media)}
        if _has_parts(message)
        else message
        for i, message in enumerate(messages)
    ]
    if len(media) > _MAX_MEDIA:
        raise InvalidRequest(f"more than {_MAX_MEDIA} media in one request", param="messages")
    return {**body, "messages": lifted}, tuple(media)


def join_parts(parts: Sequence[tuple[str, str]]) -> str:
    """Join pairs of type and text: texts by a newline, markers without any (llama.cpp's rule)."""
    joined, after_marker = "", False
    for kind, text in parts:
        if kind != MARKER and joined and not after_marker:
            joined += "\n"
        joined += text
        after_marker = kind == MARKER
    return joined


def _has_parts(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("content"), list)


def _lift(content: list[Any], path: str, card: ModelCard, media: list[bytes]) -> list[Any]:
    lifted = []
    for i, part in enumerate(content):
        data = _read(part, f"{path}[{i}]", card)
        if data is None:
            lifted.append(_without_marker(part, card))
        else:
            media.append(data)
            lifted.append({"type": MARKER, "text": card.media_marker})
    return lifted


def _without_marker(part: Any, card: ModelCard) -> Any:
    """Take a marker out of a client's text: it stands for media that are not there."""
    text = part.get("text") if isinstance(part, dict) else None
    if card.media_marker and isinstance(text, str) and card.media_marker in text:
        return {**part, "text": text.replace(card.media_marker, "")}
    return part


def _read(part: Any, path: str, card: ModelCard) -> bytes | None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == MARKER:
        raise InvalidRequest("unsupported content[].type", param=f"{path}.type")
    if kind == "image_url":
        require_images(card)
        return _image(part.get("image_url"), f"{path}.image_url")
    if kind == "input_audio":
        require_audio(card)
        return _audio(part.get("input_audio"), f"{path}.input_audio")
    return None


def _image(value: Any, path: str) -> bytes:
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise InvalidRequest(f"Field '{path}': must have a 'url'", param=path)
    if "://" in url[:16]:
        message = f"Field '{path}': only data URLs are taken; this server fetches nothing"
        raise InvalidRequest(message, param=path)
    return read_base64(url, f"{path}.url")


def _audio(value: Any, path: str) -> bytes:
    if not isinstance(value, dict) or value.get("format") not in ("wav", "mp3", "flac"):
        message = f"Field '{path}.format': must be one of wav, mp3, flac"
        raise InvalidRequest(message, param=path)
    return read_base64(value.get("data"), f"{path}.data")
