"""OpenAI's content parts: texts, images and sounds, in chats and in inputs for embeddings."""

from typing import Any

from gateway.api.fields.chat.conversation import ChatMedia, Part
from gateway.api.fields.options import require_string
from protocol.errors import InvalidRequest

_UNSUPPORTED = ("input_video", "video_url", "file")
_TEXTS = ("text", "refusal")
"""Types of a part whose text stands under the same name."""


def read_part(part: Any, path: str, media: ChatMedia) -> Part:
    """Read one part; raises `TaskError`."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "image_url":
        return _image(part.get("image_url"), f"{path}.image_url", media)
    if kind == "input_audio":
        return _audio(part.get("input_audio"), f"{path}.input_audio", media)
    if kind in _TEXTS:
        return media.text(require_string(part, kind, path))
    if kind in _UNSUPPORTED:
        message = f"Field '{path}.type': {kind} input is not supported yet"
        raise InvalidRequest(message, param=f"{path}.type")
    raise InvalidRequest("unsupported content[].type", param=f"{path}.type")


def _image(value: Any, path: str, media: ChatMedia) -> Part:
    media.require_images()
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise InvalidRequest(f"Field '{path}': must have a 'url'", param=path)
    return media.image(url, f"{path}.url")


def _audio(value: Any, path: str, media: ChatMedia) -> Part:
    """Take in a sound, which llama-server reads from `url` too; its data tell its format."""
    media.require_audio()
    if not isinstance(value, dict):
        raise InvalidRequest(f"Field '{path}': must have 'data'", param=path)
    key = "url" if value.get("data") is None and value.get("url") is not None else "data"
    return media.audio(value.get(key), f"{path}.{key}")
