"""Probabilities of a chosen token and its rivals, before and after the samplers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from protocol.wire.facts import TokenProb
from worker.llama.sampling.greedy import Logits
from worker.llama.sampling.stages import likeliest, view


def raw_prob(token: int, logits: Logits, n: int, pieces: Sequence[bytes]) -> TokenProb:
    """Return the log-probability of a token, and the `n` likeliest, by the logits alone."""
    top = float(logits.max())
    log_total = top + float(np.log(np.exp(logits - top, dtype=np.float64).sum()))
    n = min(n, len(logits))
    best = np.argpartition(logits, len(logits) - n)[-n:]
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenProb(
        id=token,
        piece=pieces[token],
        p=float(logits[token]) - log_total,
        top=tuple((int(i), pieces[i], float(logits[i]) - log_total) for i in best),
    )


def final_prob(token: int, candidates: Any, n: int, pieces: Sequence[bytes]) -> TokenProb:
    """Return probabilities after the sampler chain; impossible tokens are left out."""
    items = view(candidates)
    weights = np.exp(items["logit"] - items["logit"].max(), dtype=np.float64)
    probabilities = weights / weights.sum()
    best = likeliest(probabilities, n)
    ids = items["id"]
    own = probabilities[ids == token]
    return TokenProb(
        id=token,
        piece=pieces[token],
        p=float(own[0]) if len(own) else 0.0,
        top=tuple(
            (int(ids[i]), pieces[int(ids[i])], float(probabilities[i]))
            for i in best
            if probabilities[i] > 0
        ),
    )
