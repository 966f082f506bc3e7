"""The body of the embeddings endpoints of all dialects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.api.fields.media import place_media
from gateway.api.fields.options import read_int, wrong_type
from gateway.api.fields.prompt import Prompt, mixed
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import INT32_MAX
from protocol.wire.side_tasks import Embed

_BAD_FORMAT = "The format to return the embeddings in. Can be either float or base64"
_NOT_OAI = "Pooling type 'none' is not OAI compatible. Please use a different pooling type"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPlan:
    """What an embeddings body asks for."""

    task: Embed
    model: str
    """The model's name in the answer: the client's own, as in llama-server."""
    is_native: bool
    """The answer has llama-server's shape: `content` has none of OpenAI's."""
    is_one: bool
    """One text in `content`, to which the server of 2024 answered with an object."""
    base64: bool


def plan_embeddings(body: Mapping[str, Any], card: ModelCard, *, native: bool) -> EmbeddingPlan:
    """Read the body; raises `TaskError` for what cannot be done."""
    _check_offer(card, native=native)
    key = "input" if body.get("input") is not None else "content"
    value = body.get(key)
    if value is None:
        raise InvalidRequest('"input" or "content" must be provided', param="input")
    _check_dimensions(body, card)
    normalize = read_int(body, "embd_normalize", -1, INT32_MAX)
    inputs, media = _with_media(body, value, _inputs(value, card.n_vocab, key), card)
    task = Embed(
        inputs=inputs,
        media=media,
        normalize=card.embd_normalize if normalize is None else normalize,
    )
    return EmbeddingPlan(
        task=task,
        model=str(body.get("model") or card.name),
        is_native=native or key == "content",
        is_one=key == "content" and isinstance(value, str),
        base64=_wants_base64(body),
    )


def _with_media(
    body: Mapping[str, Any], value: Any, inputs: tuple[Prompt, ...], card: ModelCard
) -> tuple[tuple[Prompt, ...], tuple[bytes, ...]]:
    """Return the inputs, and the images of a single text; several texts have none."""
    images = body.get("image_data")
    if len(inputs) > 1:
        has_own = isinstance(value, list) and any(map(_has_media, value))
        if images or has_own:
            message = "Field 'image_data': images go with one text alone"
            raise InvalidRequest(message, param="image_data")
        return inputs, ()
    own = value[0] if isinstance(value, list) else value
    text, media = place_media({"image_data": images, "prompt": own}, 0, inputs[0], card)
    return (text,), media


def _has_media(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("multimodal_data"))


def _check_offer(card: ModelCard, *, native: bool) -> None:
    if not card.has_embeddings:
        message = "This server does not support embeddings. Start it with `--embeddings`"
        raise TaskError(ErrorCode.NOT_SUPPORTED, message)
    if card.pooling == "rank":
        raise InvalidRequest("Pooling type 'rank' gives scores and no embeddings: use /rerank")
    if card.pooling == "none" and not native:
        raise InvalidRequest(_NOT_OAI)


def _wants_base64(body: Mapping[str, Any]) -> bool:
    value = body.get("encoding_format")
    if value is None:
        return False
    if not isinstance(value, str):
        raise wrong_type("encoding_format", "string", value)
    if value not in ("float", "base64"):
        raise InvalidRequest(_BAD_FORMAT, param="encoding_format")
    return value == "base64"


def _check_dimensions(body: Mapping[str, Any], card: ModelCard) -> None:
    wanted = read_int(body, "dimensions", 1, INT32_MAX)
    if wanted not in (None, card.n_embd_out):
        message = f"Field 'dimensions': this model's embeddings have {card.n_embd_out}; "
        raise InvalidRequest(message + "shortening them is not supported", param="dimensions")


def _inputs(value: Any, n_vocab: int, key: str) -> tuple[Prompt, ...]:
    """Read one or several inputs; an array with a number in it is one."""
    if isinstance(value, list) and not any(_is_number(item) for item in value):
        if not value:
            raise InvalidRequest('"input" must not be empty', param=key)
        return tuple(_one(item, n_vocab, key) for item in value)
    return (_one(value, n_vocab, key),)


def _one(value: Any, n_vocab: int, key: str) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if not value:
            raise InvalidRequest("Input content cannot be empty", param=key)
        return mixed(value, n_vocab, key=key)
    if isinstance(value, dict):
        return _object(value, key)
    raise InvalidRequest(f'"{key}" must be text, tokens, or an array of these', param=key)


def _object(value: dict[str, Any], key: str) -> str:
    """Read `{prompt_string}`, or OpenAI's content parts under `content`: text alone."""
    text = value.get("prompt_string")
    if isinstance(text, str):
        return text
    parts = value.get("content")
    if isinstance(parts, list) and all(_is_text(part) for part in parts):
        return "".join(part["text"] for part in parts)
    raise InvalidRequest(f'"{key}": an object must hold a prompt string or text parts', param=key)


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text"), str)
    )


def _is_number(item: Any) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)
