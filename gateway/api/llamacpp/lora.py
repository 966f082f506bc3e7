"""The adapters' list and the body that sets their scales, in llama-server's words."""

from collections.abc import Sequence
from typing import Any

from gateway.api.results.settings import float32
from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.side_tasks import LoraAdapter
from protocol.wire.values import read_lora


def read_scales(value: Any, card: ModelCard) -> tuple[tuple[int, float], ...]:
    """Read `[{"id": 0, "scale": 1.0}, …]`; an adapter that is not named gets the scale 0."""
    if not isinstance(value, list):
        raise InvalidRequest("Request body must be an array")
    try:
        scales = read_lora(value)
    except ValueError as error:
        raise InvalidRequest(f"Request body: {error}") from error
    for number, _ in scales:
        if number >= card.n_lora:
            have = f"0 to {card.n_lora - 1} are" if card.n_lora else "none is"
            raise InvalidRequest(f"no adapter has the id {number}; {have} loaded", param="id")
    return scales


def listed(adapters: Sequence[LoraAdapter]) -> list[dict[str, Any]]:
    """Return the adapters of a model."""
    return [
        {
            "id": adapter.id,
            "path": adapter.path,
            "scale": float32(adapter.scale),
            "task_name": adapter.task_name,
            "prompt_prefix": adapter.prompt_prefix,
        }
        for adapter in adapters
    ]
