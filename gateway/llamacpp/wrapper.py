"""The answers of `api_like_OAI.py`, the wrapper of 2023: /completions with `tokenize`.

Its values are fixed where OpenAI's would tell something (`id`, `model`), and its streams end each
event with a single newline.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from gateway.llamacpp import completion
from gateway.openai.usage import FINISH_REASONS
from gateway.reply import Outcome, Plan
from protocol.errors import InvalidRequest
from protocol.facts import ModelCard
from protocol.messages import Delta, Done, Progress, Started


def plan(body: Mapping[str, Any], card: ModelCard) -> Plan:
    """Plan a completion that will be answered as the wrapper did; raises `InvalidRequest`."""
    native = {key: value for key, value in body.items() if key != "tokenize"}
    planned = completion.plan(native, card)
    if len(planned.tasks) != 1:
        raise InvalidRequest("Field 'tokenize': only one choice of one prompt", param="tokenize")
    return replace(planned, reply=WrapperReply(()))


class WrapperReply:
    """Speaks the wrapper's text completion; see `gateway.reply.Reply`."""

    def __init__(self, prompt_tokens: Sequence[int]) -> None:
        self._prompt_tokens = prompt_tokens
        self._created = int(time.time())

    def started(self, index: int, message: Started) -> None:
        """Nothing to note: the wrapper does not tell of slots."""

    def progress(self, index: int, message: Progress) -> bytes:
        """Frame nothing: the wrapper knew no progress."""
        return b""

    def delta(self, index: int, message: Delta) -> bytes:
        """Frame added text."""
        return self._chunk(message.text, None) if message.text else b""

    def done(self, index: int, message: Done) -> bytes:
        """Frame the finish reason."""
        return self._chunk("", FINISH_REASONS[message.finish])

    def end(self) -> bytes:
        """Frame nothing: the wrapper's streams just end."""
        return b""

    def result(self, outcomes: Sequence[Outcome]) -> Any:
        """Return the wrapper's object."""
        (outcome,) = outcomes
        done = outcome.done
        choice = {"text": outcome.text, "index": 0, "logprobs": None}
        return {
            "id": "cmpl",
            "object": "text_completion",
            "created": self._created,
            "truncated": done.truncated,
            "model": "LLaMA_CPP",
            "usage": {
                "completion_tokens": done.n_predicted,
                "prompt_tokens": done.n_prompt,
                "total_tokens": done.n_prompt + done.n_predicted,
            },
            "promptToken": list(self._prompt_tokens),
            "choices": [choice | {"finish_reason": FINISH_REASONS[done.finish]}],
        }

    def _chunk(self, text: str, reason: str | None) -> bytes:
        chunk = {
            "id": "cmpl",
            "object": "text_completion.chunk",
            "created": self._created,
            "model": "LLaMA_CPP",
            "choices": [{"finish_reason": reason, "index": 0, "text": text}],
        }
        return b"data: " + orjson.dumps(chunk) + b"\n"
