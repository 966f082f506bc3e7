"""Every kind of random requests, and the servers that it is sent to."""

from collections.abc import Iterable, Mapping
from random import Random

from tests.parity.random_requests.drawn import cases, errors, prompts, sessions, vectors
from tests.parity.random_requests.steps import Kind, Step, one

KINDS: Mapping[str, Kind] = {
    **{name: Kind(one(draw)) for name, draw in cases.KINDS.items()},
    "tokenize": Kind(one(prompts.tokenize), ("plain", "bert cls")),
    "template": Kind(one(prompts.template)),
    "errors": Kind(one(errors.wrong)),
    "views": Kind(sessions.views),
    "session": Kind(sessions.session, ("slots",)),
    "adapters": Kind(sessions.adapters, ("adapters",)),
    "embedding": Kind(one(vectors.embedding), ("mean", "last", "none", "bert cls", "bert mean")),
    "seeing": Kind(one(vectors.seeing), ("seeing",)),
    "rerank": Kind(one(vectors.rerank), ("reranker",)),
}


def random_steps(kind: str, seed: int, number: int) -> Iterable[Step]:
    """Draw the n-th sequence of a kind."""
    return KINDS[kind].draw(Random(f"{kind} {seed} {number}"))
