"""What chat and text completions have in common: the whole answer, usage, log probabilities."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.reply import ResponseOptions
from gateway.api.results.answer import Identity
from gateway.api.results.figures import LOWEST_LOG_PROB, text, token_probs
from protocol.wire.facts import TokenProb
from protocol.wire.messages import Done
from protocol.wire.sampling import SamplingParams


def whole_answer(
    who: Identity,
    kind: str,
    choices: Sequence[Mapping[str, Any]],
    dones: Sequence[Done],
    n: int,
) -> dict[str, Any]:
    """Return an answer in one piece, without timings; `n` is the number of choices of a prompt."""
    return {
        "choices": choices,
        "created": who.created,
        "model": who.model,
        "system_fingerprint": who.fingerprint,
        "object": kind,
        "usage": usage(dones, n),
        "id": who.id,
    }


def usage(dones: Sequence[Done], n: int) -> dict[str, Any]:
    """Count the tokens of each prompt once, whatever `n`, and of every choice."""
    n_prompt = sum(done.n_prompt for done in dones[::n])
    n_predicted = sum(done.n_predicted for done in dones)
    return {
        "completion_tokens": n_predicted,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_predicted,
        "prompt_tokens_details": {"cached_tokens": sum(done.n_cached for done in dones[::n])},
    }


def log_probs(
    probs: Sequence[TokenProb], params: SamplingParams, options: ResponseOptions
) -> dict[str, Any]:
    """Return `logprobs` of a chat choice."""
    content = token_probs(probs, post=params.post_sampling_probs, n_top=options.n_top)
    return {"content": content}


def legacy_log_probs(
    probs: Sequence[TokenProb],
    params: SamplingParams,
    options: ResponseOptions,
    *,
    offset: int,
    prompt: Sequence[TokenProb] = (),
) -> dict[str, Any]:
    """Return `logprobs` of a text completion: llama-server's `content` and OpenAI's four arrays.

    The prompt is in the four arrays only; its first token has no probability, which is null.
    """
    listed = [*prompt, *probs]
    tokens = [text(prob.piece) for prob in listed]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return log_probs(probs, params, options) | {
        "tokens": tokens,
        "token_logprobs": [_finite(prob.p) for prob in listed],
        "top_logprobs": [
            None
            if math.isnan(prob.p)
            else {text(piece): _finite(p) for _, piece, p in prob.top[: options.n_top]}
            for prob in listed
        ],
        "text_offset": offsets,
    }


def _finite(p: float) -> float | None:
    return None if math.isnan(p) else max(p, LOWEST_LOG_PROB)
