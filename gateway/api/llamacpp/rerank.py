"""The body and the answers of /rerank: Jina's shape, or TEI's if the documents are `texts`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.api.fields.options import read_flag, read_int
from protocol.errors import InvalidRequest, not_started
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import INT32_MAX
from protocol.wire.side_tasks import Rerank, Reranked


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankPlan:
    """What a reranking body asks for."""

    task: Rerank
    model: str
    top_n: int
    is_tei: bool
    returns_text: bool
    returns_documents: bool


def plan_rerank(body: Mapping[str, Any], card: ModelCard) -> RerankPlan:
    """Read the body; raises `TaskError` for what cannot be done."""
    if not card.has_embeddings or card.pooling != "rank":
        raise not_started("reranking", "`--reranking`")
    query = body.get("query")
    if query is None:
        raise InvalidRequest('"query" must be provided', param="query")
    if not isinstance(query, str):
        raise InvalidRequest('"query" must be a string', param="query")
    is_tei = body.get("texts") is not None
    key = "texts" if is_tei and body.get("documents") is None else "documents"
    documents = _documents(body.get(key), key)
    top_n = read_int(body, "top_n", 0, INT32_MAX)
    return RerankPlan(
        task=Rerank(query=query, documents=documents),
        model=str(body.get("model") or card.name),
        top_n=len(documents) if top_n is None else top_n,
        is_tei=is_tei,
        returns_text=read_flag(body, "return_text"),
        returns_documents=read_flag(body, "return_documents"),
    )


def _documents(value: Any, key: str) -> tuple[str, ...]:
    """Read texts; Jina's and Cohere's clients also send each as `{"text": …}`."""
    items = value if isinstance(value, list) else []
    found = [item.get("text") if isinstance(item, dict) else item for item in items]
    texts = tuple(text for text in found if isinstance(text, str))
    if not texts or len(texts) < len(found):
        raise InvalidRequest('"documents" must be a non-empty string array', param=key)
    return texts


def rerank_answer(plan: RerankPlan, message: Reranked) -> Any:
    """Return the best documents first."""
    order = sorted(range(len(message.scores)), key=lambda index: -message.scores[index])
    results = _results(plan, message, order[: plan.top_n])
    if plan.is_tei:
        return results
    return {
        "model": plan.model,
        "object": "list",
        "usage": {"prompt_tokens": message.n_tokens, "total_tokens": message.n_tokens},
        "results": results,
    }


def _results(plan: RerankPlan, message: Reranked, indices: Sequence[int]) -> list[dict[str, Any]]:
    label = "score" if plan.is_tei else "relevance_score"
    results: list[dict[str, Any]] = []
    for index in indices:
        text = plan.task.documents[index]
        result: dict[str, Any] = {"index": index, label: message.scores[index]}
        if plan.returns_text:
            result["text"] = text
        if plan.returns_documents:
            result["document"] = {"text": text}
        results.append(result)
    return results
