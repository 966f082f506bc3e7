"""The answers of /v1/chat/completions: stream chunks and the object in one piece.

A chunk is a constant head, one encoded string and a constant tail: dumping an object for each token
costs more than all the rest of the gateway.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.api.openai.functions import function_call, function_call_piece
from gateway.api.openai.reply import OpenAIReply, log_probs, members
from gateway.api.reply import ResponseOptions, TaskOutcome
from gateway.api.results import figures
from gateway.api.results.answer import FINISH_REASONS
from gateway.api.results.completion import completion
from gateway.api.results.figures import n_alternatives, progress_fields, timings
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.messages import Delta, Done, Progress, ToolCallDelta
from protocol.wire.sampling import SamplingParams

_ROLE = b'{"role":"assistant","content":null}'


class ChatReply(OpenAIReply):
    """Writes the answers of OpenAI's chat API."""

    kind = "chat.completion"

    def __init__(
        self, card: ModelCard, params: Sequence[SamplingParams], options: ResponseOptions
    ) -> None:
        super().__init__(card, params, options)
        self._tail = members(self._fields("chat.completion.chunk", id=self._identity.id))
        self._heads = [
            b'data: {"choices":[{"finish_reason":null,"index":%d,"delta":' % i
            for i in range(len(params))
        ]
        self._text_heads = [head + b'{"content":' for head in self._heads]
        self._text_tail = b"}}]" + self._tail + b"}\n\n"
        self._has_role = [False] * len(params)
        self._has_calls = [False] * len(params)
        self._held: list[tuple[TokenProb, ...]] = [()] * len(params)

    @property
    def id(self) -> str:
        """The id of the answer."""
        return self._identity.id

    def progress(self, index: int, message: Progress) -> bytes:
        """Return a role chunk with `prompt_progress`, as llama-server does."""
        told = progress_fields(message, self._params[index])
        return self._chunk(index, _ROLE, extra=members(told))

    def delta(self, index: int, message: Delta) -> bytes:
        """Return the frames of what was added; an empty delta has none: no client expects ""."""
        if self._has_role[index] and self._is_text(message):
            return self._text_heads[index] + orjson.dumps(message.text) + self._text_tail
        role = b"" if self._has_role[index] else self._role(index)
        added = self._added(index, message)
        if not added:
            if message.probs:
                self._held[index] += message.probs
            if n_alternatives(self._held[index]) > figures.MANY:
                return role + self._chunk(index, b"{}", self._log_probs(index, ()))
            return role
        *before, last = added
        before = [role, *(self._chunk(index, piece) for piece in before)]
        extra = b""
        if message.timings is not None:
            extra = b',"timings":' + orjson.dumps(timings(message.timings))
        chunk = self._chunk(index, last, self._log_probs(index, message.probs), extra)
        return b"".join((*before, chunk))

    def _is_text(self, message: Delta) -> bool:
        """Return whether a chunk has a text and nothing else, as most have."""
        if self._options.n_top >= 0 or message.timings is not None or not message.text:
            return False
        return not (message.reasoning or message.tool_calls)

    def _added(self, index: int, message: Delta) -> list[bytes]:
        """Write reasoning, text and calls as separate deltas, in llama-server's order."""
        added = []
        if message.reasoning:
            added.append(b'{"reasoning_content":' + orjson.dumps(message.reasoning) + b"}")
        if message.text:
            added.append(b'{"content":' + orjson.dumps(message.text) + b"}")
        if message.tool_calls:
            self._has_calls[index] = True
            added += [self._call(call) for call in message.tool_calls]
        return added

    def _call(self, call: ToolCallDelta) -> bytes:
        if self._options.names_functions:
            return b'{"function_call":' + orjson.dumps(function_call_piece(call)) + b"}"
        return b'{"tool_calls":[' + orjson.dumps(tool_call_piece(call)) + b"]}"

    def _reason(self, done: Done, *, has_calls: bool) -> str:
        """Return OpenAI's reason; an answer that was cut off gets `length`, also with calls."""
        reason = FINISH_REASONS[done.finish]
        if not has_calls or reason != "stop":
            return reason
        return "function_call" if self._options.names_functions else "tool_calls"

    def _role(self, index: int) -> bytes:
        self._has_role[index] = True
        return self._chunk(index, _ROLE)

    def _log_probs(self, index: int, probs: tuple[TokenProb, ...]) -> bytes:
        """Include earlier tokens that were held: parts of a character that is complete now."""
        probs = self._held[index] + probs
        if not probs or self._options.n_top < 0:
            return b""
        self._held[index] = ()
        return b',"logprobs":' + orjson.dumps(log_probs(probs, self._params[index], self._options))

    def _chunk(self, index: int, delta: bytes, choice: bytes = b"", extra: bytes = b"") -> bytes:
        parts = (self._heads[index], delta, choice, b"}]", self._tail, extra, b"}\n\n")
        return b"".join(parts)

    def done(self, index: int, message: Done) -> bytes:
        """Return the frame with the finish reason, and timings unless the usage chunk has them."""
        self._dones[index] = message
        role = b"" if self._has_role[index] else self._role(index)
        reason = self._reason(message, has_calls=self._has_calls[index]).encode()
        head = b'data: {"choices":[{"finish_reason":"%b","index":%d,"delta":{}' % (reason, index)
        extra = b""
        if not self._options.include_usage:
            extra = b',"timings":' + orjson.dumps(timings(message.timings))
        if self._options.verbose:
            outcome = TaskOutcome(text="", tokens=(), probs=(), done=message)
            native = completion(self._card, self._params[index], index, outcome)
            extra += b',"__verbose":' + orjson.dumps(native)
        held = self._log_probs(index, ())
        return b"".join((role, head, held, b"}]", self._tail, extra, b"}\n\n"))

    def _choice(self, index: int, outcome: TaskOutcome) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": outcome.text}
        if outcome.reasoning:
            message["reasoning_content"] = outcome.reasoning
        if outcome.tool_calls and self._options.names_functions:
            message["content"] = outcome.text or None
            message["function_call"] = function_call(outcome.tool_calls[0])
        elif outcome.tool_calls:
            message["tool_calls"] = [tool_call(call) for call in outcome.tool_calls]
        choice = {
            "finish_reason": self._reason(outcome.done, has_calls=bool(outcome.tool_calls)),
            "index": index,
            "message": message,
        }
        if self._options.n_top >= 0:
            choice["logprobs"] = log_probs(outcome.probs, self._params[index], self._options)
        return choice


def tool_call(call: ToolCallDelta) -> dict[str, Any]:
    """Write a whole call."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"type": "function", "function": function, "id": call.id}


def tool_call_piece(call: ToolCallDelta) -> dict[str, Any]:
    """Write a piece of a call: only the first one has the id and the name."""
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}
