"""llama-server's completion object: the answer of /completion, and `__verbose` in OpenAI's answers.

It has the keys of llama-server today in its order, then those of 2023 and 2024 that are gone there
(`slot_id`, `stopped_*`, settings).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.api.reply import TaskOutcome
from gateway.api.results.figures import completion_probabilities, timings
from gateway.api.results.settings import legacy_settings, settings
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Done, Finish
from protocol.wire.sampling import SamplingParams


def completion(
    card: ModelCard, params: SamplingParams, index: int, outcome: TaskOutcome
) -> dict[str, Any]:
    """Return the object of one choice."""
    done = outcome.done
    params = _in_force(params, done)
    result = {
        "index": index,
        "content": done.raw or outcome.text,
        "tokens": outcome.tokens if params.return_tokens else (),
        "id_slot": done.slot,
        "slot_id": done.slot,
        "stop": True,
        "model": card.name,
        "tokens_predicted": done.n_predicted,
        "tokens_evaluated": done.n_prompt,
        "generation_settings": settings(params)
        | legacy_settings(params, n_ctx=card.n_ctx, model=card.name),
        "prompt": done.prompt,
        "has_new_line": done.has_new_line,
        "truncated": done.truncated,
        "stop_type": _STOP_TYPES[done.finish],
        "stopping_word": done.stopping_word,
        "tokens_cached": done.n_past,
        "timings": timings(done.timings),
        "stopped_eos": done.finish is Finish.EOS,
        "stopped_word": done.finish is Finish.WORD,
        "stopped_limit": done.finish is Finish.LIMIT,
    }
    if outcome.probs:
        result["completion_probabilities"] = completion_probabilities(
            outcome.probs, post=params.post_sampling_probs, n_top=params.n_probs
        )
    return project(result, params.response_fields) if params.response_fields else result


def _in_force(params: SamplingParams, done: Done) -> SamplingParams:
    """Return the parameters with what the worker made of them."""
    return replace(
        params,
        logit_bias=done.biases,
        stop=done.stops or params.stop,
        backend_sampling=done.backend_sampling,
        grammar=done.grammar or params.grammar,
        generation_prompt=done.generation_prompt or params.generation_prompt,
    )


_STOP_TYPES: Mapping[Finish, str] = {
    Finish.EOS: "eos",
    Finish.WORD: "word",
    Finish.LIMIT: "limit",
    Finish.CANCELLED: "none",
    Finish.NONE: "none",
}


def project(result: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Keep only the named fields; `a/b` is the field b of object a and keeps that name."""
    kept = {}
    for path in paths:
        value: Any = result
        for key in path.split("/"):
            if not isinstance(value, Mapping) or key not in value:
                break
            value = value[key]
        else:
            kept[path] = value
    return kept
