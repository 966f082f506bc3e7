"""The `prompt` of /completion and /v1/completions: text, tokens, both, or several of these."""

from collections.abc import Mapping
from typing import Any

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import INT32_MAX

Prompt = str | tuple[int | str, ...]

_SHAPES = (
    "elements must be a string, a list of tokens, a JSON object containing a prompt string, "
    "or a list of mixed strings & tokens."
)


def read_prompts(body: Mapping[str, Any], n_vocab: int) -> tuple[Prompt, ...]:
    """Read one or several prompts."""
    value = body.get("prompt")
    if value is None:
        raise InvalidRequest("key 'prompt' not found", param="prompt")
    if is_several(value):
        if not value:
            raise InvalidRequest('"prompt" must not be empty', param="prompt")
        return tuple(_one(item, n_vocab) for item in value)
    return (_one(value, n_vocab),)


def is_several(value: Any) -> bool:
    """Return whether a value is an array of prompts; an array with a number in it is one prompt."""
    return isinstance(value, list) and not any(
        isinstance(item, int | float) and not isinstance(item, bool) for item in value
    )


def mixed(value: list[Any], n_vocab: int, *, key: str) -> tuple[int | str, ...]:
    """Read an array of tokens and texts."""
    kinds = set(map(type, value))
    if not kinds <= {int, str}:
        raise InvalidRequest(f'"{key}" {_SHAPES}', param=key)
    tokens = value if kinds == {int} else [item for item in value if type(item) is int]
    limit = n_vocab or INT32_MAX
    if tokens and not (min(tokens) >= 0 and max(tokens) < limit):
        raise InvalidRequest("Prompt contains invalid tokens", param=key)
    return tuple(value)


def check_infill(card: ModelCard) -> None:
    """Raise `TaskError` for a model without infill tokens, in llama-server's words."""
    if card.fim_missing:
        named = "".join(f"{name} token is missing. " for name in card.fim_missing)
        message = f"Infill is not supported by this model: {named}"
        raise TaskError(ErrorCode.NOT_SUPPORTED, message)


def _one(value: Any, n_vocab: int) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if not value:
            raise InvalidRequest('"prompt" must not be empty', param="prompt")
        return mixed(value, n_vocab, key="prompt")
    if isinstance(value, dict):
        return _object(value)
    raise InvalidRequest(f'"prompt" {_SHAPES}', param="prompt")


def _object(value: dict[str, Any]) -> str:
    text = value.get("prompt_string")
    if not isinstance(text, str):
        raise InvalidRequest(f'"prompt" {_SHAPES}', param="prompt")
    return text
