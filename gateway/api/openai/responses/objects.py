"""The objects of /v1/responses: the response, its items, its usage."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.wire.messages import Done, Finish, ToolCallDelta


def _draw(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """Ids of a response and of its items; a call has its own."""

    response: str = field(default_factory=lambda: _draw("resp_"))
    reasoning: str = field(default_factory=lambda: _draw("rs_"))
    message: str = field(default_factory=lambda: _draw("msg_"))
    created: int = field(default_factory=lambda: int(time.time()))


def reasoning_item(ids: Ids, text: str | None, status: str) -> dict[str, Any]:
    """Return the item of the reasoning; without a text, it has only started."""
    content = [] if text is None else [{"text": text, "type": "reasoning_text"}]
    return {
        "id": ids.reasoning,
        "summary": [],
        "type": "reasoning",
        "content": content,
        "encrypted_content": "",
        "status": status,
    }


def message_item(ids: Ids, content: Sequence[dict[str, Any]], status: str) -> dict[str, Any]:
    """Return the item of the text."""
    return {
        "type": "message",
        "status": status,
        "id": ids.message,
        "content": list(content),
        "role": "assistant",
    }


def text_part(text: str, log_probs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the one part of a message."""
    return {
        "type": "output_text",
        "annotations": [],
        "logprobs": list(log_probs),
        "text": text,
    }


def call_id(call: ToolCallDelta) -> str:
    """Return the id of a call's item."""
    return f"fc_{call.id}"


def call_item(call: ToolCallDelta, status: str) -> dict[str, Any]:
    """Return the item of a function call."""
    return {
        "id": call_id(call),
        "type": "function_call",
        "status": status,
        "arguments": call.arguments,
        "call_id": f"call_{call.id}",
        "name": call.name,
    }


def usage(done: Done, n_reasoning: int) -> dict[str, Any]:
    """Count tokens; the cached ones are part of the input."""
    return {
        "input_tokens": done.n_prompt,
        "output_tokens": done.n_predicted,
        "total_tokens": done.n_prompt + done.n_predicted,
        "input_tokens_details": {
            "cached_tokens": done.n_cached,
            "cache_write_tokens": done.n_prompt - done.n_cached,
        },
        "output_tokens_details": {"reasoning_tokens": n_reasoning},
    }


def incomplete_details(done: Done) -> dict[str, Any] | None:
    """Return why the text is incomplete, or None.

    The status stays `completed`, as in llama-server: OpenAI's client waits for no other.
    """
    is_whole = done.finish in (Finish.EOS, Finish.WORD)
    return None if is_whole else {"reason": "max_output_tokens"}
