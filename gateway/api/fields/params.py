"""The sampling fields of a request, over the model's defaults and within its workers' limits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from protocol.errors import InvalidRequest
from protocol.wire.facts import ModelCard
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from protocol.wire.shapes import INT32_MAX, Bounds


def read_params(body: Mapping[str, Any], card: ModelCard) -> SamplingParams:
    """Read generation and sampling fields; raises `InvalidRequest` naming one."""
    defaults = replace(card.defaults, reasoning_format=card.reasoning_format)
    params = _in_vocabulary(read(defaults, body, bounds=Bounds({"n_ctx": card.n_ctx})), card)
    lacking = [
        kind for kind in params.speculative_types if kind not in (*_speculators(card), "none")
    ]
    if lacking:
        key = next(key for key in _TYPE_KEYS if body.get(key) is not None)
        have = ", ".join(_speculators(card))
        message = f"Field '{key}': {lacking[0]} is not available here, only {have}"
        raise InvalidRequest(message, param=key)
    n_max, most = params.speculative_n_max, card.defaults.speculative_n_max or 0
    if n_max is not None and n_max > most:
        # The field is a maximum, so fewer are allowed; the answer's settings show the number.
        return replace(params, speculative_n_max=most)
    return params


def _in_vocabulary(params: SamplingParams, card: ModelCard) -> SamplingParams:
    """Drop the biases of tokens that the model does not have, as llama-server does."""
    last = (card.n_vocab or INT32_MAX) - 1
    known = tuple(
        (token, bias)
        for token, bias in params.logit_bias
        if isinstance(token, str) or 0 <= token <= last
    )
    return params if len(known) == len(params.logit_bias) else replace(params, logit_bias=known)


_TYPE_KEYS = ("speculative_types", "speculative.type", "speculative.types")


def _speculators(card: ModelCard) -> tuple[str, ...]:
    return card.defaults.speculative_types or ("none",)
