"""The answers of `api_like_OAI.py`, the wrapper of 2023: OpenAI's endpoints with `tokenize`.

`id` and `model` are constants there, and each event of a stream ends with a single newline.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from gateway.api.reply import RequestPlan, ResponseFormatter, TaskOutcome
from gateway.api.results.answer import FINISH_REASONS
from protocol.errors import InvalidRequest
from protocol.wire.messages import Delta, Done, Generate


def wrapped(planned: RequestPlan) -> RequestPlan:
    """Return the plan with the wrapper's answer; raises `InvalidRequest`."""
    if len(planned.tasks) != 1:
        raise InvalidRequest("Field 'tokenize': needs one prompt and one choice", param="tokenize")
    return replace(planned, reply=reply_to(planned.tasks[0]))


def reply_to(task: Generate, prompt_tokens: Sequence[int] = ()) -> "WrapperReply":
    """Return what answers a task."""
    return WrapperReply(prompt_tokens, is_chat=task.chat is not None)


class WrapperReply(ResponseFormatter):
    """Writes the wrapper's text completions and chats."""

    def __init__(self, prompt_tokens: Sequence[int], *, is_chat: bool) -> None:
        self._prompt_tokens = prompt_tokens
        self._is_chat = is_chat
        self._kind = "chat.completion" if is_chat else "text_completion"
        self._identity = {
            "id": "chatcmpl" if is_chat else "cmpl",
            "created": int(time.time()),
            "model": "LLaMA_CPP",
        }
        self._has_started = False

    def delta(self, index: int, message: Delta) -> bytes:
        """Return the frames of added text."""
        return self._role() + (self._chunk(message.text, None) if message.text else b"")

    def done(self, index: int, message: Done) -> bytes:
        """Return the frame with the finish reason."""
        return self._role() + self._chunk("", FINISH_REASONS[message.finish])

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return the wrapper's object."""
        (outcome,) = outcomes
        done, text = outcome.done, outcome.text
        said: Mapping[str, Any] = {"text": text, "logprobs": None}
        if self._is_chat:
            said = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **said, "finish_reason": FINISH_REASONS[done.finish]}
        result = {
            **self._identity,
            "object": self._kind,
            "truncated": done.truncated,
            "usage": {
                "completion_tokens": done.n_predicted,
                "prompt_tokens": done.n_prompt,
                "total_tokens": done.n_prompt + done.n_predicted,
            },
            "choices": [choice],
        }
        return result | ({"promptToken": list(self._prompt_tokens)} if self._prompt_tokens else {})

    def _role(self) -> bytes:
        """Return the role, once: the first event of a chat."""
        if self._has_started or not self._is_chat:
            return b""
        self._has_started = True
        return self._frame({"delta": {"role": "assistant"}}, None)

    def _chunk(self, text: str, reason: str | None) -> bytes:
        return self._frame(
            {"delta": {"content": text}} if self._is_chat else {"text": text}, reason
        )

    def _frame(self, said: Mapping[str, Any], reason: str | None) -> bytes:
        choice = {"finish_reason": reason, "index": 0, **said}
        chunk = {**self._identity, "object": f"{self._kind}.chunk", "choices": [choice]}
        return b"data: " + orjson.dumps(chunk) + b"\n"
