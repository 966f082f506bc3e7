"""What the answers of chats and text completions have in common: ends, usage, probabilities."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from gateway.api.reply import ResponseFormatter, ResponseOptions, TaskOutcome
from gateway.api.results.answer import identity
from gateway.api.results.completion import completion
from gateway.api.results.figures import (
    LOWEST_LOG_PROB,
    in_parts,
    text,
    timings,
    token_probs,
    total,
)
from gateway.api.sse import DONE
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.messages import Done
from protocol.wire.sampling import SamplingParams


class OpenAIReply(ResponseFormatter):
    """Base of the writers of chats and of text completions."""

    kind: ClassVar[str]
    """The `object` of an answer in one piece."""
    _tail: bytes
    """Fields of every chunk, behind its choices."""
    _id: bytes = b""
    """The id, where it comes behind the usage."""

    def __init__(
        self, card: ModelCard, params: Sequence[SamplingParams], options: ResponseOptions
    ) -> None:
        self._card = card
        self._params = params
        self._options = options
        self._identity = identity(card)
        self._dones: dict[int, Done] = {}

    def end(self) -> bytes:
        """Return the chunk that `include_usage` asks for, without choices, and the end mark."""
        if not self._options.include_usage:
            return DONE
        dones = [done for _, done in sorted(self._dones.items())]
        counts = orjson.dumps(usage(dones, self._params[0].n))
        times = orjson.dumps(timings(total(dones)))
        figures = b',"usage":%b,"timings":%b}\n\n' % (counts, times)
        return b"".join((b'data: {"choices":[]', self._tail, self._id, figures, DONE))

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return the object of an answer in one piece."""
        dones = [outcome.done for outcome in outcomes]
        choices = [self._choice(i, outcome) for i, outcome in enumerate(outcomes)]
        result = {"choices": choices} | self._fields(self.kind)
        result |= {"usage": usage(dones, self._params[0].n), "id": self._identity.id}
        if self._options.verbose:
            result["__verbose"] = completion(self._card, self._params[0], 0, outcomes[0])
        return result | {"timings": timings(total(dones))}

    def _choice(self, index: int, outcome: TaskOutcome) -> dict[str, Any]:
        """Return a choice of an answer in one piece."""
        raise NotImplementedError

    def _fields(self, kind: str, **second: str) -> dict[str, Any]:
        """Return the fields that name model and server, in llama-server's order."""
        who = self._identity
        return {
            "created": who.created,
            **second,
            "model": who.model,
            "system_fingerprint": who.fingerprint,
            "object": kind,
        }


def members(fields: Mapping[str, Any]) -> bytes:
    """Write fields as further ones of an object that has some already."""
    return b"," + orjson.dumps(fields)[1:-1]


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
    tops = (
        None
        if math.isnan(prob.p)
        else {text(piece): _finite(p) for _, piece, p in prob.top[: options.n_top]}
        for prob in listed
    )
    return log_probs(probs, params, options) | {
        "tokens": tokens,
        "token_logprobs": [_finite(prob.p) for prob in listed],
        "top_logprobs": in_parts(tops, listed),
        "text_offset": offsets,
    }


def _finite(p: float) -> float | None:
    return None if math.isnan(p) else max(p, LOWEST_LOG_PROB)
