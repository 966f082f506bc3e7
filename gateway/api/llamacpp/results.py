"""The answers of /completion: the final object, stream chunks, projection.

Both eras at once: today's keys in today's order, and the keys of 2023 and 2024 beside them
(`slot_id`, `stopped_*`, `multimodal`, the settings that are gone).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import orjson

from gateway.api.fields.figures import completion_probabilities, progress_fields, timings
from gateway.api.llamacpp.settings import legacy_settings, settings
from gateway.api.reply import TaskOutcome
from gateway.http.sse import event
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Delta, Done, Finish, Progress, Started
from protocol.wire.sampling import SamplingParams


def completion(
    card: ModelCard, params: SamplingParams, index: int, outcome: TaskOutcome
) -> dict[str, Any]:
    """Return the final object of one choice."""
    done = outcome.done
    params = replace(
        params,
        logit_bias=done.biases,
        stop=done.stops or params.stop,
        backend_sampling=done.backend_sampling,
    )
    result = {
        "index": index,
        "content": outcome.text,
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


_STOP_TYPES: Mapping[Finish, str] = {
    Finish.EOS: "eos",
    Finish.WORD: "word",
    Finish.LIMIT: "limit",
    Finish.CANCELLED: "none",
    Finish.NONE: "none",
}


def project(result: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Keep only the named fields; `a/b` reaches into objects and stays the key; others drop."""
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


class CompletionReply:
    """Speaks llama-server's own completion API; see `gateway.api.reply.Reply`."""

    is_read_by_chunk: ClassVar[bool] = True

    def __init__(self, card: ModelCard, params: Sequence[SamplingParams]) -> None:
        self._card = card
        self._params = params
        self._heads = [b'data: {"index":%d,"content":' % i for i in range(len(params))]
        self._middles = [_middle(-1)] * len(params)
        self._tails = [self._tail(0)] * len(params)

    def started(self, index: int, message: Started) -> None:
        """Note slot and prompt length: every chunk repeats them."""
        self._middles[index] = _middle(message.slot)
        self._tails[index] = self._tail(message.n_prompt)

    def progress(self, index: int, message: Progress) -> bytes:
        """Frame an empty chunk with `prompt_progress`."""
        told = orjson.dumps(progress_fields(message, self._params[index]))
        return self._chunk(index, Delta(task_id=0), b"," + told[1:-1])

    def delta(self, index: int, message: Delta) -> bytes:
        """Frame one chunk; an empty text still tells of its tokens."""
        extra = b""
        if message.timings is not None:
            extra = b',"timings":' + orjson.dumps(timings(message.timings))
        if message.probs:
            params = self._params[index]
            items = completion_probabilities(
                message.probs, post=params.post_sampling_probs, n_top=params.n_probs
            )
            extra += b',"completion_probabilities":' + orjson.dumps(items)
        return self._chunk(index, message, extra)

    def _chunk(self, index: int, message: Delta, extra: bytes) -> bytes:
        return b"".join(
            (
                self._heads[index],
                orjson.dumps(message.text),
                b',"tokens":',
                orjson.dumps(message.tokens),
                self._middles[index],
                b"%d" % message.n_predicted,
                self._tails[index],
                extra,
                b"}\n\n",
            )
        )

    def _tail(self, n_prompt: int) -> bytes:
        is_multimodal = b"true" if self._card.media_marker else b"false"
        return b',"tokens_evaluated":%d,"multimodal":%b' % (n_prompt, is_multimodal)

    def done(self, index: int, message: Done) -> bytes:
        """Frame the final object; the text has gone out before."""
        outcome = TaskOutcome(text="", tokens=(), probs=(), done=message)
        return event(orjson.dumps(completion(self._card, self._params[index], index, outcome)))

    def end(self) -> bytes:
        """Nothing follows: the native stream has no [DONE]."""
        return b""

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return one object, or an array when the request asked for several."""
        objects = [
            completion(self._card, params, i, outcome)
            for i, (params, outcome) in enumerate(zip(self._params, outcomes, strict=True))
        ]
        return objects[0] if len(objects) == 1 else objects


def _middle(slot: int) -> bytes:
    return b',"stop":false,"id_slot":%d,"slot_id":%d,"tokens_predicted":' % (slot, slot)
