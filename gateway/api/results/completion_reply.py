"""The answers of /completion and /infill: stream chunks and the object in one piece."""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.api.reply import ResponseFormatter, TaskOutcome
from gateway.api.results.completion import completion
from gateway.api.results.figures import completion_probabilities, progress_fields, timings
from gateway.api.sse import event
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Delta, Done, Progress, Started
from protocol.wire.sampling import SamplingParams


class CompletionReply(ResponseFormatter):
    """Writes the answers of /completion."""

    is_read_by_chunk = True

    def __init__(self, card: ModelCard, params: Sequence[SamplingParams]) -> None:
        self._card = card
        self._params = params
        self._heads = [b'data: {"index":%d,"content":' % i for i in range(len(params))]
        self._middles = [_middle(-1)] * len(params)
        self._tails = [self._tail(0)] * len(params)

    def started(self, index: int, message: Started) -> None:
        """Note the slot and the length of the prompt, which every chunk repeats."""
        self._middles[index] = _middle(message.slot)
        self._tails[index] = self._tail(message.n_prompt)

    def progress(self, index: int, message: Progress) -> bytes:
        """Return an empty chunk with `prompt_progress`."""
        told = orjson.dumps(progress_fields(message, self._params[index]))
        return self._chunk(index, Delta(), b"," + told[1:-1])

    def delta(self, index: int, message: Delta) -> bytes:
        """Return one chunk, also for an empty text: it has the tokens."""
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
        """Return the final object, without the text: its chunks were sent."""
        outcome = TaskOutcome(text="", tokens=(), probs=(), done=message)
        return event(orjson.dumps(completion(self._card, self._params[index], index, outcome)))

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return one object, or an array when the request asked for several."""
        objects = [
            completion(self._card, params, i, outcome)
            for i, (params, outcome) in enumerate(zip(self._params, outcomes, strict=True))
        ]
        return objects[0] if len(objects) == 1 else objects


def _middle(slot: int) -> bytes:
    return b',"stop":false,"id_slot":%d,"slot_id":%d,"tokens_predicted":' % (slot, slot)
