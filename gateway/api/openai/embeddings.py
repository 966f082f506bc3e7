"""The answer of /v1/embeddings."""

from typing import Any

from gateway.api.fields.embedding import EmbeddingPlan
from gateway.api.results.vectors import vector_json
from protocol.wire.side_tasks import Embedded


def embeddings_answer(plan: EmbeddingPlan, message: Embedded) -> dict[str, Any]:
    """Return OpenAI's list, one object an input; base64 is of little-endian float32."""
    note = {"encoding_format": "base64"} if plan.base64 else {}
    n_tokens = sum(message.n_tokens)
    return {
        "model": plan.model,
        "object": "list",
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        "data": [
            {
                "embedding": vector_json(vector, as_base64=plan.base64),
                "index": index,
                "object": "embedding",
                **note,
            }
            for index, vector in enumerate(message.vectors)
        ],
    }
