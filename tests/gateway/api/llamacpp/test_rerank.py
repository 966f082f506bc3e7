"""The body of /rerank and its two shapes."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.api.llamacpp.rerank import plan_rerank, rerank_answer
from protocol.errors import ErrorCode, TaskError
from protocol.wire.side_tasks import Reranked
from tests.gateway.cards import CARD

RANK = replace(CARD, has_embeddings=True, pooling="rank", n_embd_out=1)
ASKED = {"query": "q", "documents": ["a", "b", "c"]}
SCORES = Reranked(scores=(0.5, -1.0, 4.0), n_tokens=12)


def answer(body: dict[str, Any]) -> Any:
    return rerank_answer(plan_rerank(body, RANK), SCORES)


def test_jinas_answer_lists_the_best_first() -> None:
    assert answer(ASKED) == {
        "model": "tiny",
        "object": "list",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
        "results": [
            {"index": 2, "relevance_score": 4.0},
            {"index": 0, "relevance_score": 0.5},
            {"index": 1, "relevance_score": -1.0},
        ],
    }


def test_texts_get_teis_bare_array() -> None:
    body = {"query": "q", "texts": ["a", "b", "c"]}
    assert answer(body)[0] == {"index": 2, "score": 4.0}
    assert answer({**body, "return_text": True})[1] == {"index": 0, "score": 0.5, "text": "a"}


@pytest.mark.parametrize(("top_n", "n"), [(0, 0), (2, 2), (100, 3), (None, 3)])
def test_top_n_cuts_the_list(top_n: int | None, n: int) -> None:
    assert len(answer({**ASKED, "top_n": top_n})["results"]) == n


def test_documents_may_be_objects_and_come_back() -> None:
    body = {"query": "q", "documents": [{"text": "a"}, "b", {"text": "c"}]}
    results = answer({**body, "return_documents": True})["results"]
    assert results[0] == {"index": 2, "relevance_score": 4.0, "document": {"text": "c"}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": ["a"]}, '"query" must be provided'),
        ({"query": 5, "documents": ["a"]}, '"query" must be a string'),
        ({"query": "q"}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": []}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": "a"}, '"documents" must be a non-empty string array'),
        ({"query": "q", "texts": ["a", 1]}, '"documents" must be a non-empty string array'),
        (
            {**ASKED, "top_n": -1},
            "Field 'top_n': Value must be between 0 <= value <= 2147483647, but got -1",
        ),
    ],
)
def test_bad_bodies_are_refused_in_llama_servers_words(body: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        plan_rerank(body, RANK)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "card", [CARD, replace(CARD, has_embeddings=True, pooling="mean")], ids=["off", "mean"]
)
def test_a_server_that_does_not_rank_says_how_to_start_it(card: Any) -> None:
    with pytest.raises(TaskError) as caught:
        plan_rerank(ASKED, card)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    assert caught.value.message == (
        "This server does not support reranking. Start it with `--reranking`"
    )
