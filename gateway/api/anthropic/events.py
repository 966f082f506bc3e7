"""The answers of /v1/messages: the events of a stream and the message in one piece.

Each block is closed before the next one begins, as Anthropic documents it; llama-server closes all
of them at the end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.api.reply import ResponseFormatter, TaskOutcome
from gateway.api.results.answer import identity
from gateway.api.results.figures import progress
from gateway.api.sse import named_event
from protocol.wire.facts import ModelCard
from protocol.wire.messages import Delta, Done, Finish, Progress, Started, ToolCallDelta

_Block = tuple[str, int]
"""Type of a block, and the index of a call."""

_NO_BLOCK: _Block = ("", 0)
_THINKING: _Block = ("thinking", 0)
_TEXT: _Block = ("text", 0)


class MessagesReply(ResponseFormatter):
    """Writes the answers of Anthropic's messages API."""

    def __init__(self, card: ModelCard) -> None:
        self._id = identity(card).id
        self._model = card.name
        self._prompt = {"cache_read_input_tokens": 0, "input_tokens": 0}
        self._started = False
        self._block = _NO_BLOCK
        self._index = -1
        self._has_calls = False

    def started(self, index: int, message: Started) -> None:
        """Note the usage for the first event."""
        self._prompt = _prompt_usage(message.n_prompt, message.n_cached)

    def progress(self, index: int, message: Progress) -> bytes:
        """Return a ping with the progress of the prompt; clients ignore its unknown field."""
        return self._opening() + _event("ping", prompt_progress=progress(message))

    def delta(self, index: int, message: Delta) -> bytes:
        """Return the frames of what was added, block by block."""
        frames = [self._opening()]
        if message.reasoning:
            added = {"type": "thinking_delta", "thinking": message.reasoning}
            frames += [self._begin(_THINKING, _thinking("")), self._add(added)]
        if message.text:
            added = {"type": "text_delta", "text": message.text}
            frames += [self._begin(_TEXT, _text("")), self._add(added)]
        for piece in message.tool_calls:
            self._has_calls = True
            frames.append(self._begin(("tool_use", piece.index), _tool_use(piece, {})))
            if piece.arguments:
                frames.append(self._add(_json_delta(piece)))
        return b"".join(frames)

    def done(self, index: int, message: Done) -> bytes:
        """Return the frames that end the last block and the message."""
        frames = [self._opening(), self._close()]
        delta = _stop(message, has_calls=self._has_calls)
        usage = {"output_tokens": message.n_predicted}
        frames.append(_event("message_delta", delta=delta, usage=usage))
        frames.append(_event("message_stop"))
        return b"".join(frames)

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return the `message` object."""
        (outcome,) = outcomes
        done = outcome.done
        content = [_thinking(outcome.reasoning)] if outcome.reasoning else []
        if outcome.text:
            content.append(_text(outcome.text))
        content += [_tool_use(call, _input(call.arguments)) for call in outcome.tool_calls]
        usage = _prompt_usage(done.n_prompt, done.n_cached) | {"output_tokens": done.n_predicted}
        return self._message(content, _stop(done, has_calls=bool(outcome.tool_calls)), usage)

    def _message(
        self, content: list[dict[str, Any]], stop: Mapping[str, Any], usage: Mapping[str, int]
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            **stop,
            "usage": usage,
        }

    def _opening(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        stop = {"stop_reason": None, "stop_sequence": None}
        message = self._message([], stop, self._prompt | {"output_tokens": 0})
        return _event("message_start", message=message)

    def _begin(self, block: _Block, content: Mapping[str, Any]) -> bytes:
        """Return what begins this block, after closing another; nothing if it is open."""
        if block == self._block:
            return b""
        closed = self._close()
        self._block = block
        self._index += 1
        return closed + _event("content_block_start", index=self._index, content_block=content)

    def _add(self, delta: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if self._block == _NO_BLOCK:
            return b""
        signed = b""
        if self._block == _THINKING:  # Anthropic's clients expect a signature
            signed = self._add({"type": "signature_delta", "signature": ""})
        self._block = _NO_BLOCK
        return signed + _event("content_block_stop", index=self._index)


def failure(body: Mapping[str, Any]) -> bytes:
    """Return the frame of an error after the first byte."""
    return _event("error", error=body["error"])


def _event(name: str, **fields: Any) -> bytes:
    return named_event(name, orjson.dumps({"type": name, **fields}))


def _prompt_usage(n_prompt: int, n_cached: int) -> dict[str, int]:
    return {"cache_read_input_tokens": n_cached, "input_tokens": n_prompt - n_cached}


def _stop(done: Done, *, has_calls: bool) -> dict[str, Any]:
    reason = "max_tokens"
    if done.finish in (Finish.EOS, Finish.WORD):
        reason = "stop_sequence" if done.stopping_word else "end_turn"
        if has_calls:
            reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": done.stopping_word or None}


def _thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tool_use(call: ToolCallDelta, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _json_delta(piece: ToolCallDelta) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": piece.arguments}


def _input(arguments: str) -> Any:
    """Parse the arguments; JSON that was cut off becomes no input."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
