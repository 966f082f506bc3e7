"""The answers of /embeddings and /embedding."""

from typing import Any

import orjson

from gateway.api.fields.embedding import EmbeddingPlan
from gateway.api.results.vectors import vector_json
from protocol.wire.side_tasks import Embedded


def native_answer(plan: EmbeddingPlan, message: Embedded, *, object_of_one: bool) -> Any:
    """Return llama-server's array, or where asked for the object of 2024 for one text.

    Each input has a list of vectors in the array: one with a pooling, one a token without. They
    are numbers, whatever `encoding_format` says.
    """
    if object_of_one and plan.is_one:
        vectors = _vectors(message, message.vectors[0])
        return {"index": 0, "embedding": vectors[0] if message.is_pooled else vectors}
    return [
        {"index": index, "embedding": _vectors(message, data)}
        for index, data in enumerate(message.vectors)
    ]


def _vectors(message: Embedded, data: bytes) -> list[orjson.Fragment]:
    size = 4 * message.n_embd
    return [
        vector_json(data[start : start + size], as_base64=False)
        for start in range(0, len(data), size)
    ]
