"""The body of the embeddings endpoints of all dialects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.api.fields.chat.conversation import ChatMedia
from gateway.api.fields.chat.parts import read_part
from gateway.api.fields.media import place_media
from gateway.api.fields.media_links import MediaLink
from gateway.api.fields.options import read_int
from gateway.api.fields.prompt import Prompt, is_several, mixed
from protocol.errors import InvalidRequest, not_started
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import INT32_MAX
from protocol.wire.schema import wrong_type
from protocol.wire.side_tasks import Embed, Embedded

MAX_WITH_MEDIA = 64
"""Inputs of a request that may have images or sounds: each is computed alone."""
_BAD_FORMAT = "The format to return the embeddings in. Can be either float or base64"
_NOT_OAI = "Pooling type 'none' is not OAI compatible. Please use a different pooling type"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPlan:
    """What an embeddings body asks for."""

    tasks: tuple[Embed, ...]
    """In the order of the inputs: an input with media is a task of its own."""
    model: str
    """The model's name in the answer: the client's own, as in llama-server."""
    is_native: bool
    """The answer has llama-server's shape: `content` has none of OpenAI's."""
    is_one: bool
    """One text in `content`, to which the server of 2024 answered with an object."""
    base64: bool
    """Vectors are base64: in OpenAI's shape alone, as in llama-server."""
    links: tuple[tuple[MediaLink, ...], ...] = ()
    """For each task the media that are not fetched yet."""


@dataclass(frozen=True, slots=True)
class _Input:
    """One input, with what its markers stand for."""

    text: Prompt
    media: tuple[bytes, ...] = ()
    fields: tuple[str, ...] = ()
    """The field that has each of them."""
    links: tuple[MediaLink, ...] = ()


def plan_embeddings(body: Mapping[str, Any], card: ModelCard, *, native: bool) -> EmbeddingPlan:
    """Read the body; raises `TaskError` for what cannot be done."""
    _check_offer(card, native=native)
    key = "input" if body.get("input") is not None else "content"
    value = body.get(key)
    if value is None:
        raise InvalidRequest('"input" or "content" must be provided', param="input")
    _check_dimensions(body, card)
    normalize = read_int(body, "embd_normalize", -1, INT32_MAX)
    groups = _groups(_with_image_data(body, _inputs(value, card, key), card))
    norm = card.embd_normalize if normalize is None else normalize
    is_native = native or key == "content"
    return EmbeddingPlan(
        tasks=tuple(
            Embed(
                inputs=tuple(entry.text for entry in group),
                media=group[0].media,
                media_fields=group[0].fields,
                normalize=norm,
            )
            for group in groups
        ),
        links=tuple(group[0].links for group in groups),
        model=str(body.get("model") or card.name),
        is_native=is_native,
        is_one=key == "content" and isinstance(value, str),
        base64=_wants_base64(body) and not is_native,
    )


def joined(answers: Sequence[Embedded]) -> Embedded:
    """Return the answers of a plan's tasks as one."""
    if len(answers) == 1:
        return answers[0]
    return replace(
        answers[0],
        vectors=tuple(vector for answer in answers for vector in answer.vectors),
        n_tokens=tuple(n for answer in answers for n in answer.n_tokens),
    )


def _with_image_data(
    body: Mapping[str, Any], inputs: tuple[_Input, ...], card: ModelCard
) -> tuple[_Input, ...]:
    """Put the images of `image_data` into a single text."""
    images = body.get("image_data")
    if not images:
        return inputs
    if len(inputs) > 1 or inputs[0].media:
        message = "Field 'image_data': is possible only with a single text"
        raise InvalidRequest(message, param="image_data")
    return (_Input(*place_media({"image_data": images}, 0, inputs[0].text, card)),)


def _groups(inputs: tuple[_Input, ...]) -> list[list[_Input]]:
    """Cut the inputs into those with media, each alone, and runs of texts between them."""
    if sum(bool(input_.media) for input_ in inputs) > MAX_WITH_MEDIA:
        message = f"Field 'input': at most {MAX_WITH_MEDIA} inputs may have images or sounds"
        raise InvalidRequest(message, param="input")
    groups: list[list[_Input]] = []
    for input_ in inputs:
        if groups and not input_.media and not groups[-1][0].media:
            groups[-1].append(input_)
        else:
            groups.append([input_])
    return groups


def _check_offer(card: ModelCard, *, native: bool) -> None:
    if not card.has_embeddings:
        raise not_started("embeddings", "`--embeddings`")
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
        message = (
            f"Field 'dimensions': must be {card.n_embd_out}, the length of this model's embeddings"
        )
        raise InvalidRequest(message, param="dimensions")


def _inputs(value: Any, card: ModelCard, key: str) -> tuple[_Input, ...]:
    """Read one or several inputs."""
    if is_several(value):
        if not value:
            raise InvalidRequest('"input" must not be empty', param=key)
        return tuple(_one(item, card, key) for item in value)
    return (_one(value, card, key),)


def _one(value: Any, card: ModelCard, key: str) -> _Input:
    if isinstance(value, str):
        return _Input(value)
    if isinstance(value, list):
        if not value:
            raise InvalidRequest("Input content cannot be empty", param=key)
        return _Input(mixed(value, card.n_vocab, key=key))
    if isinstance(value, dict):
        return _object(value, card, key)
    raise InvalidRequest(f'"{key}" must be text, tokens, or an array of these', param=key)


def _object(value: dict[str, Any], card: ModelCard, key: str) -> _Input:
    """Read `{prompt_string, multimodal_data}`, or OpenAI's content parts under `content`."""
    text = value.get("prompt_string")
    if isinstance(text, str):
        placed = place_media({"prompt": value}, 0, text, card)
        fields = tuple(field.replace("prompt", key, 1) for field in placed.fields)
        return _Input(placed.prompt, placed.media, fields)
    parts = value.get("content")
    if not isinstance(parts, list):
        raise InvalidRequest(
            f'"{key}": an object must have "prompt_string" or "content"', param=key
        )
    media = ChatMedia(card)
    read = [
        read_part(_with_type(part), f"{key}.content[{i}]", media) for i, part in enumerate(parts)
    ]
    text = "".join(part.text for part in read)
    return _Input(text, tuple(media.pieces), tuple(media.fields), tuple(media.links))


def _with_type(part: Any) -> Any:
    """Take a part without a type for a text."""
    return {"type": "text", **part} if isinstance(part, dict) else part
