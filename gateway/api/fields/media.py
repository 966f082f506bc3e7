"""Images and sounds in request bodies: base64 to bytes, and their places in a prompt.

The server of 2023 took `image_data` with `[img-N]` in the prompt; today's takes `multimodal_data`
with a marker that `/props` shows. Both become a prompt with markers and a list of bytes.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.api.fields.prompt import Prompt
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.schema import wrong_type

_IMAGE = re.compile(r"\[img-([0-9]{1,18})\]")

NO_IMAGES = (
    "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
)
NO_AUDIO = (
    "audio input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
)
_WHITESPACE = b" \t\r\n"
_NO_MULTIMODAL = "Multimodal data provided, but model does not support multimodal requests."


class PlacedMedia(NamedTuple):
    """A prompt with markers, and the media in the order of their markers."""

    prompt: Prompt
    media: tuple[bytes, ...] = ()
    fields: tuple[str, ...] = ()
    """The field that has each of them."""


def place_media(
    body: Mapping[str, Any], index: int, prompt: Prompt, card: ModelCard
) -> PlacedMedia:
    """Put the media of a body into a prompt; raises `InvalidRequest`."""
    images = _read_image_data(body)
    data = _read_multimodal_data(body, index)
    if not images and not data:
        return PlacedMedia(prompt)
    if not card.media_marker:
        raise InvalidRequest(_NO_MULTIMODAL, param="prompt")
    if not isinstance(prompt, str):
        message = "Field 'prompt': must be a text where there are images or sounds"
        raise InvalidRequest(message, param="prompt")
    if data:
        fields = tuple(f"prompt.multimodal_data[{i}]" for i in range(len(data)))
        return PlacedMedia(prompt, data, fields)
    return _place_images(prompt, images, card.media_marker)


def require_images(card: ModelCard) -> None:
    """Raise `TaskError` if the model takes no images in chats; in llama-server that is a 500."""
    if not card.media_marker:
        raise TaskError(ErrorCode.NOT_SUPPORTED, NO_IMAGES)


def require_audio(card: ModelCard) -> None:
    """Raise `TaskError` if the model takes no audio in chats; in llama-server that is a 500."""
    if not card.has_audio:
        raise TaskError(ErrorCode.NOT_SUPPORTED, NO_AUDIO)


def refuse_media(body: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for images in a request that cannot have any."""
    if body.get("image_data"):
        message = "Field 'image_data': this endpoint takes no images"
        raise InvalidRequest(message, param="image_data")


def read_base64(value: Any, key: str) -> bytes:
    """Decode base64, with or without the head of a data URL, line breaks and padding."""
    if not isinstance(value, str):
        raise InvalidRequest(f"Field '{key}': must be a base64 string", param=key)
    if value.startswith("data:"):
        head, comma, value = value.partition(",")
        if not comma or not head.endswith(";base64"):
            raise InvalidRequest(f"Field '{key}': a data URL must be base64", param=key)
    try:
        digits = value.encode("ascii").translate(None, _WHITESPACE).rstrip(b"=")
        if len(digits) % 4 == 1:
            digits = digits[:-1]  # six bits of a byte, which llama-server leaves out
        data = base64.b64decode(digits + b"=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"Field '{key}': not valid base64", param=key) from error
    if not data:
        raise InvalidRequest(f"Field '{key}': must not be empty", param=key)
    return data


class _Image(NamedTuple):
    field: str
    data: bytes


def _read_image_data(body: Mapping[str, Any]) -> dict[int, _Image]:
    items = body.get("image_data") or []
    if not isinstance(items, list):
        raise InvalidRequest("Field 'image_data': must be an array", param="image_data")
    images = {}
    for i, item in enumerate(items):
        key = f"image_data[{i}]"
        if not isinstance(item, dict) or "id" not in item:
            raise InvalidRequest(f"Field '{key}': must have 'data' and 'id'", param=key)
        if type(item["id"]) is not int:
            raise wrong_type(f"{key}.id", "number", item["id"])
        field = f"{key}.data"
        images[item["id"]] = _Image(field, read_base64(item.get("data"), field))
    return images


def _read_multimodal_data(body: Mapping[str, Any], index: int) -> tuple[bytes, ...]:
    value = body.get("prompt")
    if isinstance(value, list):
        value = value[index] if index < len(value) else None
    items = value.get("multimodal_data") if isinstance(value, dict) else None
    if not items:
        return ()
    key = "prompt.multimodal_data"
    if not isinstance(items, list):
        raise InvalidRequest(f"Field '{key}': must be an array", param="prompt")
    return tuple(read_base64(item, f"{key}[{i}]") for i, item in enumerate(items))


def _place_images(prompt: str, images: Mapping[int, _Image], marker: str) -> PlacedMedia:
    used: list[_Image] = []

    def place(match: re.Match[str]) -> str:
        number = int(match[1])
        if number not in images:
            message = f"Field 'image_data': has no id {number}, but the prompt names [img-{number}]"
            raise InvalidRequest(message, param="image_data")
        used.append(images[number])
        return marker

    # The marker is random, so nobody writes it by chance.
    text = _IMAGE.sub(place, prompt.replace(marker, ""))
    media, fields = tuple(medium.data for medium in used), tuple(medium.field for medium in used)
    return PlacedMedia(text, media, fields)
