"""Timings, progress and token probabilities, in the shapes of 2024 and of today."""

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from protocol.wire.facts import Timings, TokenProb
from protocol.wire.messages import Done, Progress
from protocol.wire.sampling import SamplingParams
from protocol.wire.shapes import FLOAT32_MAX

LOWEST_LOG_PROB = -FLOAT32_MAX
"""Written instead of -inf, which JSON does not have; clients expect a number."""
MANY = 20_000
"""Alternatives that may be written at once, in 20 ms: of a thousand tokens OpenAI's maximum."""


def timings(times: Timings) -> dict[str, Any]:
    """Return `timings`; a rate without tokens is 0, not null."""
    # llama-server counts the steps between tokens: the first one came out of the prompt.
    n_steps = times.predicted_n - 1
    drafts = {"draft_n": times.draft_n, "draft_n_accepted": times.draft_n_accepted}
    return {
        "cache_n": times.cache_n,
        "prompt_n": times.prompt_n,
        "prompt_ms": times.prompt_ms,
        "prompt_per_token_ms": _ratio(times.prompt_ms, times.prompt_n),
        "prompt_per_second": _ratio(1000.0 * times.prompt_n, times.prompt_ms),
        "predicted_n": times.predicted_n,
        "predicted_ms": times.predicted_ms,
        "predicted_per_token_ms": _ratio(times.predicted_ms, n_steps),
        "predicted_per_second": _ratio(1000.0 * n_steps, times.predicted_ms),
    } | (drafts if times.draft_n else {})


def _ratio(part: float, whole: float) -> float:
    ratio = part / whole if whole > 0 and part > 0 else 0.0
    return ratio if math.isfinite(ratio) else 0.0


def total(dones: Iterable[Done]) -> Timings:
    """Add up the timings of the choices of one request."""
    times = [done.timings for done in dones]
    return Timings(
        cache_n=sum(timing.cache_n for timing in times),
        prompt_n=sum(timing.prompt_n for timing in times),
        prompt_ms=sum(timing.prompt_ms for timing in times),
        predicted_n=sum(timing.predicted_n for timing in times),
        predicted_ms=sum(timing.predicted_ms for timing in times),
        draft_n=sum(timing.draft_n for timing in times),
        draft_n_accepted=sum(timing.draft_n_accepted for timing in times),
    )


def progress(message: Progress) -> dict[str, Any]:
    """Return `prompt_progress`."""
    return {
        "total": message.total,
        "cache": message.cached,
        "processed": message.processed,
        "time_ms": int(message.time_ms),
    }


def progress_fields(message: Progress, params: SamplingParams) -> dict[str, Any]:
    """Return what a chunk tells about the prompt: progress, and the timings if asked for."""
    fields = {"prompt_progress": progress(message)}
    if not params.timings_per_token:
        return fields
    times = Timings(
        cache_n=message.cached,
        prompt_n=message.processed - message.cached,
        prompt_ms=message.time_ms,
    )
    return {"timings": timings(times)} | fields


def n_alternatives(probs: Iterable[TokenProb]) -> int:
    """Count tokens and their alternatives."""
    return sum(1 + len(prob.top) for prob in probs)


def in_parts(items: Iterable[Any], probs: Iterable[TokenProb]) -> list[Any]:
    """Return one item for each token, written already if they have many alternatives together.

    orjson holds the interpreter lock until it has written all: of 186 MB for 1.2 s.
    """
    if n_alternatives(probs) <= MANY:
        return list(items)
    return [orjson.Fragment(orjson.dumps(item)) for item in items]


def token_probs(probs: Sequence[TokenProb], *, post: bool, n_top: int) -> list[Any]:
    """Return today's items: `logprob`, or with `post` the probability after the sampler chain."""
    return in_parts((_token_prob(prob, post=post, n_top=n_top) for prob in probs), probs)


def completion_probabilities(probs: Sequence[TokenProb], *, post: bool, n_top: int) -> list[Any]:
    """Return today's items with the keys of 2024 (`content`, `probs`) added."""
    items = (_completion_prob(prob, post=post, n_top=n_top) for prob in probs)
    return in_parts(items, probs)


def _token_prob(prob: TokenProb, *, post: bool, n_top: int) -> dict[str, Any]:
    return {
        **_token(prob.id, prob.piece, prob.p, post=post),
        "top_probs" if post else "top_logprobs": [
            _token(id_, piece, p, post=post)
            for id_, piece, p in prob.top[:n_top]
            if not post or p > 0  # the sampler chain has removed the others
        ],
    }


def _completion_prob(prob: TokenProb, *, post: bool, n_top: int) -> dict[str, Any]:
    item = _token_prob(prob, post=post, n_top=n_top)
    item["content"] = item["token"]
    item["probs"] = [
        {"tok_str": text(piece), "prob": p if post else math.exp(min(p, 0.0))}
        for _, piece, p in prob.top[:n_top]
        if not post or p > 0
    ]
    return item


def _token(id_: int, piece: bytes, p: float, *, post: bool) -> dict[str, Any]:
    return {
        "id": id_,
        "token": text(piece),
        "bytes": list(piece),
        "prob" if post else "logprob": p if math.isfinite(p) else LOWEST_LOG_PROB,
    }


def text(piece: bytes) -> str:
    """Return a piece as text, without a character that is cut off at its end, as llama-server."""
    return codecs.utf_8_decode(piece, "replace", False)[0]
